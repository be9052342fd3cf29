"""Find the cluster that a broker adds to messages of producers (store behaviour 4.1; store format 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from store_core.broker.detect_version import evidence_of
from store_core.engine.properties import CLUSTER
from store_core.engine.rules import PutRules, put_rules
from store_core.read.records import read_message
from store_core.storage.identity import broker_identity
from store_core.storage.store import Store

DEFAULT_CLUSTER: Final = "DefaultCluster"  # of a broker without a configured one


def cluster_of(store: Store, rules: PutRules, newest: Sequence[tuple[int, int]], named: str | None) -> str | None:
    """Return the cluster of the store's broker; None for a broker that adds none.

    These are tried in order: ``named``, the configuration, the controller's file, the ``newest`` records (offset, size), the default. If only those
    records show the release, it may be one that adds no cluster, and they have none, the result is None.
    """
    if not rules.adds_cluster:
        return None
    identity = None if named else broker_identity(store.root)
    known = named or store.settings.value("brokerClusterName") or (identity.cluster if identity is not None else "")
    if known:
        return known
    messages = (read_message(store.log, *place) for place in reversed(newest))
    found = (message.properties.get(CLUSTER) for message in messages if message is not None)
    return next(filter(None, found), None) or _default_cluster(store, any_record=bool(newest))


def _default_cluster(store: Store, *, any_record: bool) -> str | None:
    """Return the cluster that a broker adds if no record shows one."""
    if any_record and not store.settings.broker_version:
        possible = evidence_of(store).possible
        if possible and not put_rules(possible[0]).adds_cluster:
            return None
    return DEFAULT_CLUSTER
