"""The state in the folders of a service, for the comparison with a replay."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tailrace.core.declare.plan import Plan
from tailrace.core.errors import StateInUseError
from tailrace.history.comparing.replayed_state import LiveState
from tailrace.history.reading.generations import folder_of
from tailrace.state import RocksStore, StateIdentity
from tailrace.state.folder import LABEL
from tailrace.state.store_cut import decode_store_cut


class LiveFolder:
    """The state folders of the tasks of a plan that was located. One is open, and locked, until the next one is requested."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.notes: list[str] = []
        """The folders that could not be used."""
        self._folder = folder_of(folder / plan.app, plan)
        self._app = plan.app
        self._open = ExitStack()

    def states(self, number: int) -> Sequence[LiveState]:
        """The state of a partition, if its folder exists, is not in use, and is complete.
        Raises StateFolderError: the folder is damaged, or holds something else.
        """
        self._open.close()
        place = self._folder / str(number)
        if not (place / LABEL).is_file():
            self.notes.append(f"there is no state in {place}: state is compared with the changelog only")
            return ()
        try:
            store = RocksStore(place, StateIdentity(self._app, number))
        except StateInUseError:
            self.notes.append(f"{place} is in use: its state is compared with the changelog only")
            return ()
        self._open.callback(store.close)
        cut = None if store.cut is None else decode_store_cut(store.cut)
        if cut is None or cut.core is None:
            self.notes.append(f"{place} holds no whole state: state is compared with the changelog only")
            return ()
        return (LiveState(str(place), store, cut.core, indexed=True, group=f"the state in {self._folder}"),)

    def close(self) -> None:
        """Close the folder that is open."""
        self._open.close()
