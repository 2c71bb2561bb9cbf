"""Another service, which was given the name of the first by mistake."""

import tailrace as tr
from tests.kafka.versions.events import Visit

app = tr.App("visits")
parcels = app.topic("parcels", Visit)


@app.actor
class Parcel(tr.Actor):
    """A parcel."""

    seen: int = 0

    @tr.process(parcels)
    def scanned(self, _event: Visit, _ctx: tr.Context[str]) -> None:
        """Count."""
        self.seen += 1
