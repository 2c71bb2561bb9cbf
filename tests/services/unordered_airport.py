"""The service of the airports with events handled as they arrive, which its handlers do not expect."""

from services.flights import airport
from tailrace.core.declare.actor import declaration_of

declaration_of(airport.Airport).order = "arrival"
app = airport.app
