"""Every builder that a saved plan may call: importing this makes them known."""

from store_core.mend import rebuild, recover, truncate
from store_core.mend.salvage import salvage_plan

__all__ = ["rebuild", "recover", "salvage_plan", "truncate"]
