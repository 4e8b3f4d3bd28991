"""What each core ATen operator means as a loop nest."""

from collections.abc import Mapping

from kerntree.coder.operators.call import Call, Lowering
from kerntree.coder.operators.norms import NORMS
from kerntree.coder.operators.pointwise import POINTWISE
from kerntree.coder.operators.reductions import REDUCTIONS
from kerntree.coder.operators.views import VIEWS

OPERATORS: Mapping[str, Lowering] = {**POINTWISE, **REDUCTIONS, **NORMS, **VIEWS}

__all__ = ["OPERATORS", "Call", "Lowering"]
