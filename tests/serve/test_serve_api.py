"""What the routes do, and what they answer to what is wrong."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from serve_helpers import FILE, KEY, NPY, Client, bearer, glyphs, npy, opened, picture, probabilities, service

import wildtta


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with service(max_images=8, max_body_mb=1, max_pixels=100_000) as client:
        yield client


def test_a_stream_predicts_and_learns_and_says_what_taught(client: Client) -> None:
    stream = client.make("tent")
    answer = stream.predict(glyphs()[:8], "?top=3")
    assert [len(one["classes"]) for one in answer["predictions"]] == [3] * 8
    assert all(one["taught"] for one in answer["predictions"])  # Tent learns from every image
    first = answer["predictions"][0]["classes"]
    assert first[0]["class"] == opened().model.classes[first[0]["index"]]
    assert first[0]["probability"] >= first[1]["probability"] >= first[2]["probability"]
    health = answer["health"]
    assert (health["images"], health["selected"], health["selected_share"], health["status"]) == (8, 8, 1.0, "ok")


def test_the_three_kinds_of_body_give_the_same(client: Client) -> None:
    stream, images = client.make("source"), glyphs()[:3]
    files = [picture(image) for image in images]
    array = stream.predict(images)
    form = stream.ask("POST", "/predict?top=40", files=[("images", file) for file in files]).json()
    coded = {"images": [base64.b64encode(file).decode() for file in files]}
    text = stream.ask("POST", "/predict?top=40", json=coded).json()
    floats = stream.predict(images.float() / 255)
    for other in (form, text, floats):
        assert other["predictions"] == array["predictions"]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_pictures_of_any_size_are_prepared_as_the_model_wants_them(client: Client, kind: str) -> None:
    stream = client.make("source")
    large = torch.from_numpy(np.kron(glyphs()[5].numpy(), np.ones((1, 3, 2), np.uint8)))
    data = picture(large, kind)
    answer = stream.ask("POST", "/predict?top=40", files={"images": data}).json()
    prepared = opened().model.preprocessing.picture(Image.open(io.BytesIO(data)))
    assert torch.equal(probabilities(answer), probabilities(stream.predict(prepared[None])))


def test_predictions_without_learning_change_nothing(client: Client) -> None:
    stream = client.make("tent", hyperparameters={"lr": "x30"})
    before = stream.state()
    answers = [stream.predict(glyphs()[:4], "?learn=false&top=40") for _ in range(2)]
    assert answers[0]["predictions"] == answers[1]["predictions"]
    assert not any(one["taught"] for one in answers[0]["predictions"])
    assert stream.state() == before
    stream.predict(glyphs()[:4])
    assert stream.state() != before


def test_reset_and_state(client: Client) -> None:
    stream, other = (client.make("tent", hyperparameters={"lr": "x30"}) for _ in range(2))
    fresh = stream.predict(glyphs()[:4], "?learn=false&top=40")["predictions"]
    for start in range(0, 32, 8):
        stream.predict(glyphs()[start : start + 8])
    learnt = stream.predict(glyphs()[:4], "?learn=false&top=40")["predictions"]
    assert learnt != fresh
    assert other.put(stream.state()).status_code == 200
    assert other.predict(glyphs()[:4], "?learn=false&top=40")["predictions"] == learnt
    assert stream.ask("POST", "/reset").status_code == 200
    assert stream.predict(glyphs()[:4], "?learn=false&top=40")["predictions"] == fresh
    assert other.predict(glyphs()[:4], "?learn=false&top=40")["predictions"] == learnt


def test_a_state_is_an_adapters_state(client: Client, tmp_path) -> None:
    stream = client.make("recap", seed=3)
    stream.predict(glyphs()[:8])
    path = tmp_path / "state.safetensors"
    path.write_bytes(stream.state())
    adapter = wildtta.adapt(opened().network, "recap", guard="collapse", seed=3, region=opened().source["region"])
    adapter.load(path)
    assert adapter.report.seen == 8
    adapter.save(path)
    assert stream.put(path.read_bytes()).status_code == 200


def test_deleted_streams_are_gone(client: Client) -> None:
    stream = client.make("tent")
    assert stream.ask("DELETE").status_code == 204
    assert stream.ask("GET").status_code == 403
    assert stream.id not in [found["id"] for found in client.get("/v1/streams").json()["streams"]]


def test_one_token_one_stream(client: Client) -> None:
    """A token of another stream, a wrong one, none, and a stream that does not exist: the same answer to all."""
    mine, theirs = client.make("tent"), client.make("tent")
    paths = [
        ("GET", ""),
        ("DELETE", ""),
        ("POST", "/predict"),
        ("POST", "/reset"),
        ("GET", "/state"),
        ("PUT", "/state"),
    ]
    for verb, what in paths:
        answers = []
        for id in (theirs.id, "0" * 16, "nothing"):
            for token in (mine.token, "wrong", theirs.token[:-1], theirs.token + "x"):
                headers = bearer(token)
                body = {"content": npy(glyphs()[:1])} if verb in ("POST", "PUT") else {}
                answers.append(client.http.request(verb, f"/v1/streams/{id}{what}", headers=headers | NPY, **body))
        assert {answer.status_code for answer in answers} == {403}
        assert len({answer.content for answer in answers}) == 1
        nameless = [client.http.request(verb, f"/v1/streams/{id}{what}") for id in (theirs.id, "nothing")]
        assert {answer.status_code for answer in nameless} == {401}
        assert len({answer.content for answer in nameless}) == 1
    assert theirs.ask("GET").status_code == 200
    assert theirs.ask("GET", headers=bearer(KEY)).status_code == 200  # the operator's key opens it


def test_the_operators_routes_want_the_operators_key(client: Client) -> None:
    stream = client.make("tent")
    for verb, path in (("POST", "/v1/streams"), ("GET", "/v1/streams"), ("GET", "/v1/overview")):
        for headers, status in (({}, 401), (bearer("wrong"), 403), (bearer(stream.token), 403)):
            body = {"json": {"method": "tent"}} if verb == "POST" else {}
            assert client.http.request(verb, path, headers=headers, **body).status_code == status
    assert client.get("/v1/overview").json()["model"] == "glyph-resnet"


def test_tokens_are_not_kept(client: Client) -> None:
    stream = client.make("tent")
    record = client.service.records[stream.id]
    assert stream.token not in record.encode().decode()
    assert stream.token not in client.get("/v1/streams").text


def test_open_services_let_anybody_create_streams_but_nothing_else() -> None:
    with service(open=True) as client:
        assert client.http.post("/v1/streams", json={}).status_code == 201
        assert client.http.get("/v1/streams").status_code == 401


def _png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


def _array(values: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    np.save(file, values, **options)
    return file.getvalue()


_FLOATS = np.full((1, 3, 32, 32), 0.5, np.float32)
_WRONG_ARRAYS = {
    "empty": (b"", 422),
    "not an array": (b"\x93NUMPY\x01\x00v\x00" + b"{" * 118, 422),
    "no images": (_array(np.zeros((0, 32, 32, 3), np.uint8)), 422),
    "too many images": (_array(np.zeros((9, 32, 32, 3), np.uint8)), 413),
    "another size": (_array(np.zeros((1, 33, 32, 3), np.uint8)), 422),
    "channels first": (_array(np.zeros((1, 3, 32, 32), np.uint8)), 422),
    "doubles": (_array(_FLOATS.astype(np.float64)), 422),
    "objects": (_array(np.array([None, {}], object), allow_pickle=True), 422),
    "fields": (_array(np.zeros(3, [("a", np.uint8)])), 422),
    "not finite": (_array(_FLOATS * np.nan), 422),
    "infinite": (_array(_FLOATS * np.inf), 422),
    "out of range": (_array(_FLOATS * 3), 422),
    "truncated": (_array(_FLOATS)[:-1], 422),
    "longer than it says": (_array(_FLOATS) + b"0", 422),
    "vast": (_array(_FLOATS).replace(b"(1, 3, 32, 32), }" + b" " * 12, b"(8, 3, 32, 32), }" + b" " * 12), 422),
    "Fortran's order": (_array(np.asfortranarray(np.zeros((2, 32, 32, 3), np.uint8))), 422),
}


@pytest.mark.parametrize("name", _WRONG_ARRAYS)
def test_wrong_arrays(client: Client, name: str) -> None:
    body, status = _WRONG_ARRAYS[name]
    _refused(client, body, NPY, status)


_WRONG_PICTURES = {
    "nothing": (b"", 422),
    "text": (b"hello", 422),
    "truncated": (_png(32, 32)[:40], 422),
    "a bomb": (_png(20_000, 20_000), 413),
    "more pixels than allowed": (_png(400, 251), 413),
    "a line": (_png(90_000, 1), 422),
    "another format": (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", 422),
}


@pytest.mark.parametrize("name", _WRONG_PICTURES)
def test_wrong_pictures(client: Client, name: str) -> None:
    picture, status = _WRONG_PICTURES[name]
    coded = json.dumps({"images": [base64.b64encode(picture).decode()]}).encode()
    _refused(client, coded, {"content-type": "application/json"}, status)


_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", _JSON, 422),
        (b"[" * 100_000, _JSON, 422),
        (b'{"images": []}', _JSON, 422),
        (b'{"images": ["%"]}', _JSON, 422),
        (b'{"images": [1]}', _JSON, 422),
        (b'{"pictures": []}', _JSON, 422),
        (b"x", {"content-type": "text/plain"}, 415),
        (b"x", {}, 415),
        (b"x", {"content-type": "multipart/form-data"}, 422),
        (b"x", {"content-type": "multipart/form-data; boundary=a"}, 422),
        (b"--a\r\n\r\nx\r\n--a--\r\n", {"content-type": "multipart/form-data; boundary=a"}, 422),
        (b"0" * (2**20 + 1), NPY, 413),
    ],
)
def test_wrong_bodies(client: Client, body: bytes, headers: dict[str, str], status: int) -> None:
    _refused(client, body, headers, status)


def _refused(client: Client, body: bytes, headers: dict[str, str], status: int) -> None:
    stream = client.make("tent")
    before = stream.state()
    answer = stream.ask("POST", "/predict", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error", "detail"}
    assert stream.state() == before
    stream.ask("DELETE")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"method": "magic"}, "unknown method"),
        ({"guard": "dog"}, "guard"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"name": "x" * 81}, "name"),
        ({"colour": 1}, "colour"),
        ({"hyperparameters": {"region": 1}}, "no hyper-parameter"),
        ({"hyperparameters": {"rate": 1}}, "no hyper-parameter"),
        ({"hyperparameters": {"lr": "fast"}}, "lr"),
        ({"hyperparameters": {"lr": None, "tau": None}}, "tau"),
        ({"hyperparameters": {"tau": True}}, "tau"),
        ({"hyperparameters": {"frozen_top": 1}}, "frozen_top"),
        ({"method": "deyo", "hyperparameters": {"patches": 100_000}}, "patches"),
        ({"method": "deyo", "hyperparameters": {"patches": 2.5}}, "patches"),
    ],
)
def test_streams_that_cannot_be(client: Client, wanted: dict[str, object], found: str) -> None:
    answer = client.http.post("/v1/streams", json=wanted, headers=bearer(KEY))
    assert answer.status_code == 422
    assert found in answer.json()["error"]


def test_every_method_can_be_had(client: Client) -> None:
    for method in wildtta.methods():
        stream = client.make(method)
        assert stream.predict(glyphs()[:2])["health"]["images"] == 2
        stream.ask("DELETE")


def test_states_that_do_not_fit(client: Client) -> None:
    stream, other = client.make("recap"), client.make("tent")
    state = stream.state()
    for body in (b"", b"x" * 100, state[:-1], state[:200], other.state(), state.replace(b"recap", b"tenta")):
        answer = stream.put(body)
        assert answer.status_code == 422, answer.text
        assert "/tmp" not in answer.text
        assert "/dev" not in answer.text
    assert stream.put(b"0" * (client.service.state_limit + 5000)).status_code == 413
    assert stream.ask("PUT", "/state", content=state).status_code == 415
    assert stream.state() == state


def test_states_whose_header_is_wrong(client: Client) -> None:
    from safetensors.torch import load, save

    stream = client.make("recap")
    state = stream.state()
    tensors = load(state)
    header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])["__metadata__"]
    own = json.loads(header["wildtta"])
    for wrong in (
        {key: value for key, value in own.items() if key != "version"},
        *({**own, key: value} for key in own for value in (None, 7, [], {"a": 1}, "x" * 5000)),
    ):
        assert stream.put(save(tensors, {"wildtta": json.dumps(wrong)})).status_code == 422
    for text in ("[" * 100_000, "7", "[]", "null", '{"kind"'):
        assert stream.put(save(tensors, {"wildtta": text})).status_code == 422
    for name in tensors:
        fewer = {key: tensor for key, tensor in tensors.items() if key != name}
        assert stream.put(save(fewer, header)).status_code == 422
        assert stream.put(save(tensors | {name: tensors[name].reshape(-1)[:0]}, header)).status_code == 422
    assert stream.state() == state


def test_states_that_are_not_finite(client: Client) -> None:
    """Wherever the damage is: what a guard remembers would become a parameter one day."""
    from safetensors.torch import load, save

    stream = client.make("recap")
    state = stream.state()
    tensors = load(state)
    header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])["__metadata__"]
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or name == "loss":
            continue
        broken = tensor.clone()
        broken.view(-1)[0] = float("nan")
        answer = stream.put(save(tensors | {name: broken}, header))
        assert answer.status_code == 422
        assert "not finite" in answer.json()["error"]
    assert stream.put(save(tensors, header)).status_code == 200


def test_weights_beyond_use_are_healed_and_told(client: Client) -> None:
    """Finite parameters whose predictions are not: the stream begins anew, and the answer is the network's as it was."""
    from safetensors.torch import load, save

    stream, plain = client.make("recap"), client.make("source")
    state = stream.state()
    header = json.loads(state[8 : 8 + int.from_bytes(state[:8], "little")])["__metadata__"]
    tensors = load(state)
    vast = tensors["stream/theta"].sign() * 3e38
    assert stream.put(save(tensors | {"stream/theta": vast}, header)).status_code == 200
    answer = stream.predict(glyphs()[:2])
    assert torch.equal(probabilities(answer), probabilities(plain.predict(glyphs()[:2])))
    assert answer["health"]["resets"] == 1
    assert "not finite" in answer["health"]["notes"][-1]
    assert stream.predict(glyphs()[:8])["health"]["status"] == "recovering"


def test_watching(client: Client) -> None:
    for path in ("/healthz", "/readyz"):
        assert client.http.get(path).json()["status"] == "ok"
    client.make("tent").predict(glyphs()[:8])
    text = client.http.get("/metrics").text
    for line in ("wildtta_images_total", "wildtta_step_seconds_bucket", 'wildtta_requests_total{route="/v1/streams"'):
        assert line in text
    assert "500" not in [line.split('status="')[1][:3] for line in text.splitlines() if 'status="' in line]


def test_other_errors_have_the_same_shape(client: Client) -> None:
    for answer, status in (
        (client.http.get("/nothing"), 404),
        (client.http.delete("/v1/streams"), 405),
        (client.http.post("/v1/streams", content=b"{", headers=bearer(KEY) | _JSON), 422),
        (client.make("tent").ask("POST", "/predict?top=0", content=b"", headers=NPY), 422),
        (client.get("/v1/overview?since=nan"), 422),
    ):
        assert answer.status_code == status
        assert answer.json().keys() == {"error", "detail"}
    assert client.http.delete("/v1/streams").headers["allow"]


def test_the_document_says_what_opens_what(client: Client) -> None:
    document = client.http.get("/openapi.json").json()
    assert document["paths"]["/v1/streams"]["post"]["security"] == [{"token": []}]
    assert set(document["paths"]["/v1/streams/{id}/predict"]["post"]["requestBody"]["content"]) == {
        "multipart/form-data",
        "application/json",
        "application/x-npy",
    }
    assert FILE["content-type"] in document["paths"]["/v1/streams/{id}/state"]["put"]["requestBody"]["content"]
