"""What the Delta library has to be told to reach an object store as stores are reached: the variables that it does not read itself."""

from __future__ import annotations

import json
import os
from urllib.parse import urlsplit

from store_core.storage.remote_path import RemotePath


def storage_options(path: RemotePath) -> dict[str, str]:
    """Options of ``DeltaTable``. Raises UsageError where an Azure address names no account."""
    match path.scheme:
        case "s3":
            return _s3()
        case "gs":
            return _google()
        case _:
            from store_core.storage.object_store import (
                account_of,
            )  # a process that has the clients makes no copies of itself

            return _azure(account_of(path))


def _s3() -> dict[str, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": _is_plain(endpoint)} if endpoint else {}


def _google() -> dict[str, str]:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if not urlsplit(emulator).netloc:
        return {}
    nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account = {"gcs_base_url": emulator, "disable_oauth": True, **nobody}  # how the library is told of an emulator
    return {"google_service_account_key": json.dumps(account), "allow_http": _is_plain(emulator)}


def _azure(account: str) -> dict[str, str]:
    options = {
        "azure_storage_account_name": account,
        "azure_storage_account_key": os.environ.get("AZURE_STORAGE_KEY", ""),
        "azure_storage_sas_token": os.environ.get("AZURE_STORAGE_SAS_TOKEN", ""),
    }
    endpoint = urlsplit(os.environ.get("AZURE_STORAGE_BLOB_ENDPOINT", ""))
    if "AZURITE_BLOB_STORAGE_URL" in os.environ:  # read by the library itself; an emulator lists otherwise
        options["azure_storage_use_emulator"] = "true"
    elif endpoint.netloc:  # the account is part of its path there
        options["azure_storage_endpoint"] = f"{endpoint.scheme}://{endpoint.netloc}/{account}"
        options["allow_http"] = _is_plain(f"{endpoint.scheme}:")
    return {name: value for name, value in options.items() if value}


def _is_plain(url: str) -> str:
    return str(url.startswith("http:")).lower()
