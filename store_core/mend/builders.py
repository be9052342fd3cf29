"""Every builder that a saved plan may call: who loads plans from here has them known."""

from store_core.mend import rebuild, recover, truncate
from store_core.mend.plans.plan_json import load_made_with, load_outlook, load_plan, load_prospect
from store_core.mend.salvage import salvage_plan

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
