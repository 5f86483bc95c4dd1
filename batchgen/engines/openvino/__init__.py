"""The engine on openvino-genai's ContinuousBatchingPipeline."""
