"""Transom: an OpenAI-compatible proxy that keeps chats inside the model's context window.

The version stands here and nowhere else; the distribution's metadata is built from it. Nothing is imported here.
"""

__version__ = "0.1.0"
