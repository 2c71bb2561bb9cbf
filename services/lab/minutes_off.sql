-- name: minutes_off
-- unit: tail
-- How far the forecasts were from the arrivals, in the mean of the last two days.
select tail, sum(abs(forecasts.arrival_delay - legs.arrival_delay)), count(*)
from outputs.forecasts
join 'data/legs/*/*/*.parquet' legs using (tail, flight)
where legs.departed = make_timestamp(forecasts.departed_ms * 1000) and legs.departed >= '2013-02-11'
group by tail
