"""Report a store that rmqctl has changed by half: it was killed amid the change, or is still at work."""

from __future__ import annotations

from pathlib import Path

from store_core.errors import FailedError
from store_core.layout.paths import OURS
from store_core.storage.remote_path import is_remote


def half_changed(root: Path) -> str | None:
    """Return a warning for readers if a change of the store is half done, else None. Its files are then partly old, partly new."""
    if is_remote(root) or not (root / OURS).exists():
        return None
    from store_core.storage.journal import unfinished  # late, for most commands return above
    from store_core.storage.live import is_locked

    try:
        change = unfinished(root)
    except FailedError as error:
        return f"it is not known whether a change of this store was interrupted: {error}"
    if change is None or not change.state.midway:
        return None
    if is_locked(root):
        return f"the change {change.id} is unfinished, and another process is at work on this store: what is read may be half changed"
    return (
        f"the change {change.id} was interrupted: what is read may be half changed; "
        "the next command with --apply settles it, `rmqctl undo --apply` takes it back"
    )
