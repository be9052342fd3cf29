"""Every builder that a saved plan may call: who loads plans from here has them known."""

from store_core.recovery import keep_steps as salvage_plan
from store_core.recovery import rebuild, recover, truncate
from store_core.recovery.plans.plan_json import load_made_with, load_outlook, load_plan, load_prospect

__all__ = [
    "load_made_with",
    "load_outlook",
    "load_plan",
    "load_prospect",
    "rebuild",
    "recover",
    "salvage_plan",
    "truncate",
]
