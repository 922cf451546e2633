"""The guard around http(s) URLs, against a real server on loopback."""

import gzip
import socket
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpcore
import pytest

from omni_core.errors import MediaError, PayloadTooLargeError
from omni_core.media import MediaLimits, fetch, web
from omni_core.media.network import is_local, is_public

OPEN = MediaLimits(allow_private_addresses=True)
BODY = bytes(range(256)) * 40


class Site(ThreadingHTTPServer):
    """A server that keeps the paths it was asked for; `stopped` ends slow answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.stopped = threading.Event()
        self.hung_up = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.headers.append(dict(self.headers.items()))
        name, _, argument = self.path.lstrip("/").partition("/")
        length = {"Content-Length": str(len(BODY))}
        match name:
            case "ok":
                self.answer(200, length, BODY)
            case "unsized":
                self.answer(200, {}, BODY)
            case "claims":
                self.answer(200, {"Content-Length": argument}, BODY)
            case "gzip":
                packed = gzip.compress(b"\0" * 1_000_000)
                self.answer(200, {"Content-Encoding": "gzip"}, packed)
            case "status":
                self.answer(int(argument), {"Content-Length": "0"})
            case "to":
                self.answer(302, {"Location": argument, "Content-Length": "0"})
            case "loop":
                self.answer(307, {"Location": self.path, "Content-Length": "0"})
            case "drip":
                self.answer(200, {"Content-Length": "1000000"})
                self.write_on(b".", every_s=0.02)
            case "drip-headers":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
                self.write_on(b".", every_s=0.02)
            case "endless":
                self.answer(200, {"Transfer-Encoding": "chunked"})
                self.write_on(b"1000\r\n" + bytes(0x1000) + b"\r\n", every_s=0)

    def write_on(self, piece: bytes, every_s: float) -> None:
        while not self.server.stopped.wait(every_s):
            try:
                self.wfile.write(piece)
            except OSError:
                self.close_connection = True
                self.server.hung_up.set()
                return


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.stopped.set()
        server.shutdown()
        thread.join()


class Resolver:
    """Answers every name with the same addresses and counts the questions."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self.addresses


def refusal(url: str, limits: MediaLimits, **kwargs: Resolver) -> str:
    with pytest.raises(MediaError) as caught:
        fetch(url, limits, **kwargs)
    assert caught.value.status == 400
    return caught.value.message


def test_body_with_and_without_a_length(site: Site) -> None:
    assert fetch(site.url("/ok"), OPEN) == BODY
    assert fetch(site.url("/unsized"), OPEN) == BODY
    assert site.headers[0]["Host"] == f"127.0.0.1:{site.server_port}"
    assert site.headers[0]["Accept-Encoding"] == "identity"


def test_path_and_query_are_sent_as_written(site: Site) -> None:
    fetch(site.url("/ok/a%2Fb/ü?x=1&y=%20#fragment"), OPEN)
    assert site.asked == ["/ok/a%2Fb/%C3%BC?x=1&y=%20"]


def test_private_addresses_are_refused_before_connecting(site: Site) -> None:
    assert "no public address" in refusal(site.url("/ok"), MediaLimits())
    assert "no public address" in refusal(f"http://localhost:{site.server_port}/ok", MediaLimits())
    assert site.asked == []


def test_a_name_with_any_private_address_is_refused(site: Site) -> None:
    url = f"http://media.example:{site.server_port}/ok"
    mixed = Resolver("93.184.215.14", "127.0.0.1")
    assert "no public address" in refusal(url, MediaLimits(), resolver=mixed)
    assert mixed.asked == [("media.example", site.server_port)]
    assert site.asked == []


def test_unknown_and_private_names_read_the_same() -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "no such host: secret detail")

    with pytest.raises(MediaError) as caught:
        fetch("http://a.example/", MediaLimits(), resolver=unknown)
    for answer in (Resolver("10.0.0.1"), Resolver()):
        message = refusal("http://b.example/", MediaLimits(), resolver=answer)
        assert caught.value.message == message


def test_the_checked_address_is_the_one_connected_to(site: Site) -> None:
    resolver = Resolver("127.0.0.1")
    url = f"http://does-not-exist.invalid:{site.server_port}/ok"
    assert fetch(url, OPEN, resolver=resolver) == BODY
    assert len(resolver.asked) == 1
    assert site.headers[0]["Host"] == f"does-not-exist.invalid:{site.server_port}"


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0x7f.0.0.1",
        "127.0.0.1.",
        "\uff11\uff12\uff17.1",
    ],
)
def test_odd_spellings_of_addresses_are_refused_unresolved(host: str) -> None:
    resolver = Resolver("93.184.215.14")
    assert "unusual form" in refusal(f"http://{host}/x", OPEN, resolver=resolver)
    assert resolver.asked == []


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "100.100.100.200", "168.63.129.16", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::1", "::", "::7f00:1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1", "2002:7f00:1::", "2002:808:808::", "2001:0:1::", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


def test_local_addresses_are_not_those_of_metadata_services() -> None:
    for address in ("127.0.0.1", "10.1.2.3", "172.31.0.1", "192.168.0.1", "::1", "fd12::1"):
        assert is_local(address)
    for address in ("169.254.169.254", "fd00:ec2::254", "fe80::1", "0.0.0.0", "100.100.100.200",
                    "172.32.0.1", "::ffff:169.254.169.254", "224.0.0.1"):  # fmt: skip
        assert not is_local(address)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://user:pw@example.com/", "user name or password"),
        ("http://@example.com/", "user name or password"),
        ("http://a.example\\@b.example/", "backslashes"),
        ("http://a.example/a b", "spaces"),
        ("http://a.example/\r\nHost: b", "control characters"),
        ("http:///path", "name a host"),
        ("http://a.example:99999/", "malformed"),
        ("http://[::1/", "malformed"),
        ("http://" + "a" * 64 + ".example/", "malformed"),
    ],
)
def test_malformed_urls(url: str, reason: str) -> None:
    resolver = Resolver("93.184.215.14")
    assert reason in refusal(url, MediaLimits(), resolver=resolver)
    assert resolver.asked == []


def test_allowed_hosts() -> None:
    limits = MediaLimits(allowed_hosts=("cdn.example", ".media.example"))
    for host in ("cdn.example", "CDN.example", "a.media.example"):
        message = refusal(f"http://{host}/", limits, resolver=Resolver("10.0.0.1"))
        assert "no public address" in message
    for host in ("example", "x.cdn.example", "media.example", "evilmedia.example"):
        assert "does not fetch" in refusal(f"http://{host}/", limits, resolver=Resolver("10.0.0.1"))


def test_redirects_are_followed(site: Site) -> None:
    assert fetch(site.url("/to//ok"), OPEN) == BODY
    assert site.asked == ["/to//ok", "/ok"]


def test_each_redirect_is_checked_anew(site: Site) -> None:
    allowed = MediaLimits(allow_private_addresses=True, allowed_hosts=("127.0.0.1",))
    target = f"http://localhost:{site.server_port}/ok"
    assert "does not fetch" in refusal(site.url(f"/to/{target}"), allowed)
    for target in ("file:///etc/passwd", "data:,x", "ftp://a.example/", "http://0x7f.1/"):
        refusal(site.url(f"/to/{target}"), OPEN)
    assert "/ok" not in site.asked


class Rerouted(httpcore.SyncBackend):
    """Stands in for the internet: every address leads to the test site."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connected: list[tuple[str, int]] = []

    def connect_tcp(self, host: str, port: int, *args: Any) -> httpcore.NetworkStream:
        self.connected.append((host, port))
        return super().connect_tcp("127.0.0.1", self.port, *args)


def test_a_redirect_to_a_private_address_is_refused(site: Site) -> None:
    internet = Rerouted(site.server_port)

    def resolver(host: str, port: int) -> Sequence[str]:
        return {"public.example": ["93.184.215.14"], "127.0.0.1": ["127.0.0.1"]}.get(
            host, ["10.0.0.1"]
        )

    assert web.get("http://public.example/ok", MediaLimits(), resolver, internet) == BODY
    for target in ("http://internal.example/ok", f"http://127.0.0.1:{site.server_port}/ok"):
        with pytest.raises(MediaError, match="no public address"):
            web.get(f"http://public.example/to/{target}", MediaLimits(), resolver, internet)
    assert internet.connected == [("93.184.215.14", 80)] * 3
    assert [path.split("/")[1] for path in site.asked] == ["ok", "to", "to"]


def test_a_name_that_changes_its_address_gains_nothing(site: Site) -> None:
    """DNS rebinding: what is checked is what is connected to, and each hop is checked."""
    internet = Rerouted(site.server_port)
    answers = iter(["93.184.215.14", "127.0.0.1", "93.184.215.14", "127.0.0.1"])

    def resolver(host: str, port: int) -> Sequence[str]:
        return [next(answers)]

    assert web.get("http://rebind.example/ok", MediaLimits(), resolver, internet) == BODY
    with pytest.raises(MediaError, match="no public address"):
        web.get("http://rebind.example/ok", MediaLimits(), resolver, internet)
    with pytest.raises(MediaError, match="no public address"):
        web.get("http://rebind.example/to//ok", MediaLimits(), resolver, internet)
    assert internet.connected == [("93.184.215.14", 80)] * 2
    assert site.asked == ["/ok", "/to//ok"]


def test_redirect_loops_end(site: Site) -> None:
    limits = MediaLimits(allow_private_addresses=True, max_redirects=3)
    assert "more than 3 times" in refusal(site.url("/loop"), limits)
    assert len(site.asked) == 4


@pytest.mark.parametrize("status", [204, 206, 304, 401, 404, 500])
def test_only_200_is_an_answer(site: Site, status: int) -> None:
    assert f"HTTP status {status}" in refusal(site.url(f"/status/{status}"), OPEN)


def test_a_large_body_is_cut_off(site: Site) -> None:
    limits = MediaLimits(allow_private_addresses=True, max_bytes=len(BODY) - 1)
    for path in ("/ok", "/unsized", "/claims/99999999999"):
        with pytest.raises(PayloadTooLargeError) as caught:
            fetch(site.url(path), limits)
        assert caught.value.status == 413
    exact = MediaLimits(allow_private_addresses=True, max_bytes=len(BODY))
    assert fetch(site.url("/unsized"), exact) == BODY


@pytest.mark.parametrize("length", ["abc", "-5", str(len(BODY) + 1)])
def test_a_wrong_content_length_is_an_error(site: Site, length: str) -> None:
    assert "not valid HTTP" in refusal(site.url(f"/claims/{length}"), OPEN)


def test_compressed_bodies_are_not_unpacked(site: Site) -> None:
    assert "compressed" in refusal(site.url("/gzip"), OPEN)


def test_a_body_without_an_end_is_hung_up_on(site: Site) -> None:
    limits = MediaLimits(allow_private_addresses=True, max_bytes=100_000)
    with pytest.raises(PayloadTooLargeError):
        fetch(site.url("/endless"), limits)
    assert site.hung_up.wait(5)


@pytest.mark.parametrize("path", ["/drip", "/drip-headers"])
def test_dripping_bytes_meet_the_total_deadline(site: Site, path: str) -> None:
    limits = MediaLimits(allow_private_addresses=True, fetch_timeout_s=0.25)
    start = time.monotonic()
    assert "within 0.25 s" in refusal(site.url(path), limits)
    assert 0.2 < time.monotonic() - start < 2.0


def test_a_slow_name_service_meets_the_deadline() -> None:
    stopped = threading.Event()

    def slow(host: str, port: int) -> Sequence[str]:
        stopped.wait(30)
        return ["93.184.215.14"]

    try:
        with pytest.raises(MediaError, match=r"within 0\.1 s"):
            fetch("http://a.example/", MediaLimits(fetch_timeout_s=0.1), resolver=slow)
    finally:
        stopped.set()


def test_a_silent_host_meets_the_deadline_and_a_closed_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        limits = MediaLimits(allow_private_addresses=True, fetch_timeout_s=0.1)
        for scheme in ("http", "https"):
            assert "within 0.1 s" in refusal(f"{scheme}://127.0.0.1:{port}/", limits)
    assert "connection failed" in refusal(f"http://127.0.0.1:{port}/", OPEN)


def test_an_answer_that_is_not_http() -> None:
    class Chatter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(b"SSH-2.0-internal\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Chatter) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        message = refusal(f"http://127.0.0.1:{server.server_address[1]}/", OPEN)
        thread.join()
    assert "not valid HTTP" in message
    assert "SSH" not in message
