from __future__ import annotations
from typing import TYPE_CHECKING

def build_engine(ctx: StageContext, runner: ARRunner) -> Engine:
    ...

def build_sglang_engine(ctx: StageContext, model: SglangModel[SglangRunner]) -> Engine:
    ...
