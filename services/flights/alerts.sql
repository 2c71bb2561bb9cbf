-- name: alerts
select count(*) from outputs."congestion-alerts"

-- name: departures_per_alert
select avg(departures) from outputs."congestion-alerts"
