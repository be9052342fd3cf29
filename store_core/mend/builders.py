"""Every builder that a saved plan may call: importing this makes them known."""

from store_core.mend import rebuild, recover, salvage_plan, truncate

__all__ = ["rebuild", "recover", "salvage_plan", "truncate"]
