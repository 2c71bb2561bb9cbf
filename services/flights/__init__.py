"""A year of flights from New York: two chained services, their input history, and a picture of their results.

    departures, arrivals, airframes  ──►  aircraft  ──►  movements  ──►  airport  ◄──  weather, cancellations

For the data, and how instants are derived from it, see docs/flights.md.
"""
