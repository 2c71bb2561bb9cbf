"""A year of flights from New York: two chained services, the history they run on, and the picture they end in.

    departures, arrivals, airframes  ──►  aircraft  ──►  movements  ──►  airport  ◄──  weather, cancellations

How instants are derived, and what is known of the data: docs/flights.md.
"""
