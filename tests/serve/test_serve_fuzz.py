"""Whatever comes in: no crash, no 500, and nothing of another stream changes."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serve_helpers import FILE, KEY, NPY, Client, StreamClient, glyphs, npy, opened, picture, service

from wildtta.serve import Settings, create_app

_JSON = {"content-type": "application/json"}


def _mutated(data: bytes, choice: random.Random) -> bytes:
    """Bytes flipped, cut out, doubled, put in, or cut off; the beginning, where headers are, more often."""
    found = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 4, 16))):
        reach = min(len(found), choice.choice((64, 1024, len(found))))
        place = choice.randrange(reach) if reach else 0
        length = choice.choice((1, 1, 4, 64))
        match choice.randrange(6):
            case 0 | 1:
                if found:
                    found[min(place, len(found) - 1)] = choice.randrange(256)
            case 2:
                del found[place : place + length]
            case 3:
                found[place:place] = found[place : place + length]
            case 4:
                found[place:place] = choice.randbytes(length)
            case _:
                del found[len(found) - min(length, len(found)) :]
    return bytes(found)


def _seeds(stream: StreamClient) -> list[tuple[str, str, dict[str, str], bytes]]:
    """Requests that are right, to begin with: verb, path, headers, body."""
    image = glyphs()[0]
    pictures = [picture(image, kind) for kind in ("PNG", "JPEG", "WEBP")]
    form = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\n%s\r\n--b--\r\n'
    multipart = {"content-type": "multipart/form-data; boundary=b"}
    seeds = [("POST", "/predict", multipart, form % one) for one in pictures]
    seeds += [("POST", "/predict", _JSON, json.dumps({"images": [base64.b64encode(pictures[0]).decode()]}).encode())]
    seeds += [("POST", "/predict", NPY, npy(batch)) for batch in (glyphs()[:2], glyphs()[:1].float() / 255)]
    return seeds + 3 * [("PUT", "/state", FILE, stream.state())]


def _pelt(client: Client, cases: int, seed: int) -> dict[int, int]:
    choice = random.Random(seed)
    victim, target = client.make("recap"), client.make("recap")
    victim.predict(glyphs()[:4])
    target.predict(glyphs()[:4])
    before, statuses = victim.state(), {}
    seeds = _seeds(target)
    for case in range(cases):
        verb, path, headers, body = choice.choice(seeds)
        if path == "/predict" and "multipart" in headers["content-type"] and choice.random() < 0.8:
            start, end = body.index(b"\r\n\r\n") + 4, body.rindex(b"\r\n--b")  # the picture alone
            body = body[:start] + _mutated(body[start:end], choice) + body[end:]
        elif path == "/predict" and headers is _JSON and choice.random() < 0.8:
            coded = base64.b64encode(_mutated(picture(glyphs()[case % 8]), choice)).decode()
            body = json.dumps({"images": [coded]}).encode()
        else:
            body = _mutated(body, choice)
        answer = target.ask(verb, path, content=body, headers=headers)
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        assert answer.status_code < 500, (case, answer.text, verb, path, body)
        if answer.status_code >= 400:
            assert answer.json().keys() == {"error", "detail"}
        else:
            json.loads(answer.content, parse_constant=_refuse)
        if case % 100 == 0:
            assert victim.state() == before
    assert victim.state() == before
    assert client.service.budget.taken == 0
    final = target.predict(glyphs()[:4])
    assert len(final["predictions"]) == 4
    return statuses


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with service() as client:
        yield client


def test_mutated_images_and_states(client: Client) -> None:
    statuses = _pelt(client, 300, seed=1)
    assert statuses[422] > 100


@pytest.mark.slow
def test_ten_thousand_mutated_images_and_states(client: Client) -> None:
    statuses = _pelt(client, 10_000, seed=2)
    print(statuses)
    assert statuses[422] > 3000


# -- the OpenAPI document ----------------------------------------------------------------------------------------------

_app = create_app(Settings(operator_key=KEY, max_streams=10_000), opened())
_NOT_IN_A_SCHEMA = positive_data_acceptance  # whether bytes are a picture, or a method is registered
_schema = schemathesis.openapi.from_asgi("/openapi.json", _app)


@schemathesis.serializer("application/x-npy")
def _as_it_is(_: object, value: object) -> object:
    return getattr(value, "data", value)


@_schema.auth()
class _Operator:
    """Schemathesis takes it away, too, to see whether anything opens without."""

    def get(self, case: schemathesis.Case, context: object) -> str:
        return KEY

    def set(self, case: schemathesis.Case, data: str, context: object) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


def _check(case: schemathesis.Case) -> None:
    """As the operator, and about half of the time for a stream that is there."""
    records = _app.state.service.records
    if (
        records
        and "id" in case.path_parameters
        and case.method != "DELETE"
        and str(case.path_parameters["id"])[-1:] < "a"
    ):
        case.path_parameters["id"] = next(iter(records))
    case.call_and_validate(excluded_checks=[_NOT_IN_A_SCHEMA])


@_schema.parametrize()
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_service_is_as_its_document_says(case: schemathesis.Case) -> None:
    _check(case)


@pytest.mark.slow
@_schema.parametrize()
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_service_is_as_its_document_says_at_length(case: schemathesis.Case) -> None:
    _check(case)
