"""A start is played once for all releases that answer alike what it asks, and its outcome is that of each of them."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from store_core.broker.versions import RELEASES, Behaviour, Watched, behaviour_of, groups_of
from store_core.layout import paths
from store_core.recovery.prediction import predict as predict_module
from store_core.recovery.prediction.predict import outcome_of, predict
from store_core.storage.store import Store
from tests import stores
from tests.broker.random_damage import STORES, draws
from tests.conftest import StoreCopy


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Behaviour]:
    """The releases whose starts are played from now on."""
    starts: list[Behaviour] = []

    def play(store: Store, behaviour: Behaviour, **options: Any) -> Any:
        starts.append(behaviour)
        return outcome_of(store, behaviour, **options)

    monkeypatch.setattr(predict_module, "outcome_of", play)
    return starts


def test_one_start_for_releases_that_differ_after_a_clean_stop_alone(
    store_copy: StoreCopy, played: list[Behaviour]
) -> None:
    root = store_copy("load-533", "crash")
    shutil.rmtree(root / paths.CONSUMEQUEUE)
    with Store.open(root) as store:
        prediction = predict(store)
    assert len(groups_of(prediction.evidence.possible)) == 3
    assert len(played) == 1


def test_after_a_clean_stop_they_are_played(store_copy: StoreCopy, played: list[Behaviour]) -> None:
    with Store.open(store_copy("load-533", "clean")) as store:
        prediction = predict(store)
    assert len(groups_of(prediction.evidence.possible)) == 3
    assert len(played) == 2


def test_a_config_file_that_some_releases_do_not_load(store_copy: StoreCopy, played: list[Behaviour]) -> None:
    """5.3.1 needs a member of subscription groups that releases before pass over."""
    root = store_copy("load-533", "crash")
    text = '{"subscriptionGroupTable": {}, "forbiddenTable": {}, "dataVersion": null}'
    for name in (paths.SUBSCRIPTION_GROUP_JSON, f"{paths.SUBSCRIPTION_GROUP_JSON}{paths.BAK_SUFFIX}"):
        (root / name).write_text(text)
    with Store.open(root) as store:
        prediction = predict(store)
    assert prediction.outcome.starts is False
    assert [other.outcome.starts for other in prediction.others] == [True]
    assert len(played) == 2


@pytest.mark.product(8)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("version", STORES)
def test_it_tells_what_every_release_would_do(version: str, seed: int, store_copy: StoreCopy) -> None:
    for base, cases in draws(version, 12, seed).items():
        for case in cases:
            root = store_copy(base)
            case.apply(root, stores.truth(base), seed)
            with Store.open(root) as store:
                prediction = predict(store)
                others = {version: other.outcome for other in prediction.others for version in other.versions}
                for behaviour, versions in groups_of(prediction.evidence.possible):
                    outcome, _ = outcome_of(store, behaviour)
                    assert {others.get(each, prediction.outcome) == outcome for each in versions} == {True}, case


def test_what_was_asked_is_remembered() -> None:
    old, new = (behaviour_of(RELEASES[place]) for place in (0, -1))
    watched = Watched(old)
    assert watched.answered_otherwise(new) == set()
    assert watched.behaviour.reads_v2 is old.reads_v2 is not new.reads_v2
    assert watched.behaviour.reads_v2 is old.reads_v2
    assert watched.answered_otherwise(new) == {"reads_v2"}
    assert watched.answered_otherwise(old) == set()
