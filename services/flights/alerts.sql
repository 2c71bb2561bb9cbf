-- name: alerts
select count(*) from outputs."congestion-alerts"

-- name: departures_in_alerts
select coalesce(sum(departures), 0) from outputs."congestion-alerts"
