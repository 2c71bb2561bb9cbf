"""The service of the aircraft after a change of its code: everybody is overdue at once."""

from services.flights import aircraft

aircraft.GRACE_MS = 0
app = aircraft.app
