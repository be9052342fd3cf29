"""Every builder that a saved plan may call: who loads plans from here has them known."""

from store_core.recovery import keep_steps, rebuild, recover, truncate
from store_core.recovery.plans.plan_json import load_made_with, load_outlook, load_plan, load_prospect

__all__ = [
    "keep_steps",
    "load_made_with",
    "load_outlook",
    "load_plan",
    "load_prospect",
    "rebuild",
    "recover",
    "truncate",
]
