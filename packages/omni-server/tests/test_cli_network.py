"""What `omni serve` makes of its settings for other hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_core.config import ConfigFile
from omni_core.errors import ConfigError
from omni_server.cli.configuration import network_of, server_settings

ALL = {"listen": "tcp://10.0.0.1:7000", "secret_file": "omni.secret", "remote": "front, voice"}


def test_by_default_there_are_no_other_hosts() -> None:
    assert network_of(server_settings({}, ConfigFile(), [])) is None


def test_what_other_hosts_need() -> None:
    network = network_of(server_settings(ALL, ConfigFile(), []))
    assert network is not None
    assert network.listen == "tcp://10.0.0.1:7000"
    assert network.secret_file == Path("omni.secret")
    assert network.guests == ("front", "voice")


@pytest.mark.parametrize("missing", ALL)
def test_a_network_without_one_of_them_is_refused(missing: str) -> None:
    flags = {name: value for name, value in ALL.items() if name != missing}
    with pytest.raises(ConfigError, match="go together"):
        network_of(server_settings(flags, ConfigFile(), []))
