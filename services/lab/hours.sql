-- The departures of each airport and hour of the schedule, in its weather.
-- Departures are counted in the log. The weather is in the state: the service keeps the hours of the last three days.
select
    hours.key as airport,
    make_timestamp(hours.entry * 1000) as hour,
    count(*) as departures,
    round(avg(movements.delay_minutes), 1) as mean_delay,
    hours.value.weather.visibility_miles as visibility,
    round(hours.value.weather.wind_mph) as wind,
    hours.value.weather.precipitation_in as rain
from states.Airport_hours hours
join topics.movements on movements.airport = hours.key
    and movements.scheduled_ms >= hours.entry
    and movements.scheduled_ms < hours.entry + 3600000
group by all
having departures >= 10
order by mean_delay desc, airport, hour
