select airport, scheduled_ms - scheduled_ms % 3600000 as start, avg(delay_minutes) as mean_delay, count(*) as departures
from topics.movements group by all
