"""Agent: a model that calls tools in a loop until it answers (Week 7).

Messages and tools use OpenAI's chat format. The agent works with any `ChatModel`: in-process,
behind a URL, or scripted.

Reading order: models, tools, workspace, compaction, loop, branches, evaluation.
"""

from .compaction import Compaction
from .loop import Agent, Transcript
from .models import ChatModel, LocalModel, Message, OpenAIModel, ScriptedModel, Usage, assistant
from .tools import Tool, ToolError
from .workspace import Workspace

__all__ = [
    "Agent",
    "ChatModel",
    "Compaction",
    "LocalModel",
    "Message",
    "OpenAIModel",
    "ScriptedModel",
    "Tool",
    "ToolError",
    "Transcript",
    "Usage",
    "Workspace",
    "assistant",
]
