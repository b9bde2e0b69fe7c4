"""What could be fused in a model, what that would bring, and why a region is what it is."""

from mirage_onnx.inspection.explain import Explanation, explain_region
from mirage_onnx.inspection.model_diff import ModelDiff, model_diff
from mirage_onnx.inspection.survey import Offer, Survey, survey_model

__all__ = ["Explanation", "ModelDiff", "Offer", "Survey", "explain_region", "model_diff", "survey_model"]
