"""The shapes of requests and responses, with examples: what the OpenAPI document is made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BINARY",
    "PREDICT_BODY",
    "STATE_BODY",
    "Answer",
    "Error",
    "Made",
    "NewStream",
    "Overview",
    "Ready",
    "Stream",
]

Number = int | float


class NewStream(BaseModel):
    """What a stream shall be."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"method": "recap", "name": "camera at the gate"},
                {"method": "sar", "hyperparameters": {"lr": "x10", "rho": 0.1}, "guard": "collapse", "seed": 7},
            ]
        },
    )

    method: Annotated[str, Field(max_length=100, description="`wildtta methods` lists them.")] = "recap"
    hyperparameters: Annotated[
        dict[str, float | int | bool | str | None],
        Field(max_length=32, description="By name; what is left out has the published default."),
    ] = {}
    guard: Annotated[Literal["collapse", "recover", "none"], Field(description="Watches over the stream.")] = "collapse"
    seed: Annotated[int, Field(ge=0, lt=1 << 31, strict=True, description="Of the method's random numbers.")] = 0
    name: Annotated[str, Field(max_length=80, description="For people; need not be unique.")] = ""


class Health(BaseModel):
    """How a stream is doing. The means are over about its last 256 images."""

    status: Annotated[
        str,
        Field(description="new, ok, recovering (set back within the last 256 images), skipping (the last step was not finite), "
              "or unsaved (snapshots fail)."),
    ]  # fmt: skip
    images: Annotated[int, Field(description="Predicted so far.")]
    selected: Annotated[int, Field(description="Of these, how many taught.")]
    steps: int
    selected_share: float
    mean_entropy: Annotated[float, Field(description="Of the predictions, in nats.")]
    class_balance: Annotated[
        float, Field(description="Entropy of the mean prediction: 1 for all classes alike, 0 for one alone.")
    ]
    latency_ms: Annotated[float, Field(description="Of the last request, in the queue and in the model.")]
    resets: int
    skipped: int
    notes: list[str]


class Stream(BaseModel):
    """A stream, without its token."""

    id: str
    name: str
    method: str
    hyperparameters: dict[str, Any]
    guard: str
    seed: int
    created: str
    used: str
    in_memory: bool
    unsaved_images: Annotated[int, Field(description="Images whose learning a crash would cost now.")]
    health: Health


class Made(Stream):
    """A new stream."""

    token: Annotated[str, Field(description="Opens this stream. It is told this once, and not kept.")]


class Streams(BaseModel):
    streams: list[Stream]


class Guess(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"class": "R", "index": 17, "probability": 0.93}]})

    class_: Annotated[str, Field(alias="class")]
    index: int
    probability: float


class Prediction(BaseModel):
    classes: Annotated[list[Guess], Field(description="The most probable, best first.")]
    taught: Annotated[bool, Field(description="Whether the stream learnt from this image.")]


class Answer(BaseModel):
    """One prediction an image, in the order of the request."""

    stream: str
    predictions: list[Prediction]
    health: Health


class Overview(BaseModel):
    """What the page shows."""

    time: float
    model: str
    classes: int
    methods: list[str]
    waiting: int
    snapshots: str
    streams: list[dict[str, Any]]


class Ready(BaseModel):
    status: str
    snapshots: str


class Error(BaseModel):
    """What was wrong, and what to do."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"error": "there are 0 images in the request", "detail": "send 1 to 64 images"}]
        }
    )

    error: str
    detail: str


BINARY = {"type": "string", "format": "binary"}

PREDICT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": BINARY, "minItems": 1}},
                    "required": ["images"],
                },
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "images": {
                            "type": "array",
                            "items": {"type": "string", "contentEncoding": "base64"},
                            "minItems": 1,
                        }
                    },
                    "required": ["images"],
                    "additionalProperties": False,
                },
                "example": {"images": ["iVBORw0KGgoAAAANSUhEUgAA…"]},
            },
            "application/x-npy": {"schema": BINARY},
        },
    }
}

STATE_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/octet-stream": {"schema": BINARY}}}
}
