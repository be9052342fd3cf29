"""What an address holds of user names, passwords and signatures stands in no message; and Azure's client ends no process."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from store_core.errors import without_secrets
from tests.rmqctl.calls import ROOT, call

SAMPLE = ROOT / "sample_store"
SIGNED = "s3://bucket/x?X-Amz-Credential=WHO&X-Amz-Signature=HIDDEN"
ADDRESSES = (
    "https://WHO:HIDDEN@host/x",
    "s3://WHO:HIDDEN@bucket/x",
    "abfss://box:HIDDEN@account.dfs.core.windows.net/x",
    "abfss://box@account.dfs.core.windows.net/x?sv=1&sig=HIDDEN",
    SIGNED,
)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("output", ["plain", "json", "ndjson"])
def test_no_message_holds_a_secret(address: str, output: str, tmp_path: Path) -> None:
    for words in (
        ("info", "-s", address),
        ("verify-crc", "-s", f"a={address}"),
        ("export", address, "-s", SAMPLE),
        ("export", tmp_path / "x", "-s", address),
        ("recover", "-s", SAMPLE, "--sibling", address),
    ):
        done = call(*words, "-o", output)
        assert done.code in (1, 2, 10)
        assert "error" in done.err
        assert "HIDDEN" not in done.out + done.err
        assert "WHO" not in done.out + done.err
        if output == "json":
            assert json.loads(done.out)["error"]["message"]


def test_what_is_no_secret_stays() -> None:
    for text in ("abfss://box@account.dfs.core.windows.net/x", "s3://bucket/a@b", "/data/a@b?c", "why? a=b"):
        assert without_secrets(text) == text
    assert without_secrets("no such bucket (s3://a:b@c/d)") == "no such bucket (s3://***@c/d)"


KEY = base64.b64encode(b"k" * 64).decode()
NO_CREDENTIALS = {
    "none": {},
    "no key": {"AZURE_STORAGE_KEY": "abc"},
    "no signature": {"AZURE_STORAGE_SAS_TOKEN": "junk"},
    "plain text": {"AZURE_STORAGE_BLOB_ENDPOINT": "http://127.0.0.1:9"},
}


@pytest.mark.parametrize("given", NO_CREDENTIALS)
def test_azure_without_credentials_is_an_error(given: str) -> None:
    found = {"AZURE_STORAGE_KEY": None, "AZURE_STORAGE_SAS_TOKEN": None} | NO_CREDENTIALS[given]
    done = call("export", "abfss://c@account.dfs.core.windows.net/x", "-s", SAMPLE, "-q", **found)
    assert done.code in (1, 2)
    assert "AZURE_STORAGE_" in done.err.splitlines()[-1]
    assert done.err.splitlines()[-1].startswith("error: ")


def test_an_account_of_no_such_name_is_an_error() -> None:
    done = call("export", "abfss://c@Wrong!.dfs.core.windows.net/x", "-s", SAMPLE, AZURE_STORAGE_KEY=KEY)
    assert (done.code, "storage account" in done.err) == (2, True)
