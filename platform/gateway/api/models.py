from __future__ import annotations

from typing import Literal

from django.http import HttpRequest
from ninja import Router, Schema

from gateway.api.auth import Key, access, services
from tenants.access import ServedModel
from tenants.versions import is_version, version_of

router = Router(tags=["models"], auth=Key())


class Model(Schema):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(Schema):
    object: Literal["list"] = "list"
    data: list[Model]


def _model(model: ServedModel) -> Model:
    owner = model.id.partition("/")[0] if model.adapter_version_id is not None else "loraplex"
    return Model(id=model.id, created=model.created, owned_by=owner)


@router.get("/v1/models", response=ModelList, summary="The models this key may use")
async def list_models(request: HttpRequest) -> ModelList:
    return ModelList(data=[_model(model) for model in access(request).models.values()])


@router.get("/v1/models/{path:model_id}", response=Model, summary="One model")
async def get_model(request: HttpRequest, model_id: str) -> Model:
    if is_version(model_id):
        return _model(await version_of(services(request).pool, access(request), model_id))
    return _model(access(request).resolve(model_id))
