"""Tables: every field of each endpoint, OpenAI's and vLLM's, with what becomes of it. Nothing but data.

`docs/serve.md` has the same as a table for people; a test holds the two together, and both to vLLM's own field names.
"""

from __future__ import annotations

from typing import Any

from quire.engine.choose import sampling_checks as bounds
from quire.engine.choose.structured import LONGEST_CHOICE, LONGEST_REGEX, MOST_CHOICES
from quire.serve.protocol.fields import Field, Fields, needed, neutral, refused, works
from quire.serve.protocol.schema import Schema

MOST_CHOICES_ASKED = 128  # answers to one request, over all of its prompts
MOST_PROMPTS = 128
MOST_TOOLS = 128
MOST_MESSAGES = 1 << 14  # and parts of one
MOST_TOKENS = 1 << 20  # of one prompt; a model's own limit is told later, with its number
LONGEST_NAME = 256  # of a model, a salt, a request
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
TEXT: Schema = {"type": "string"}
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}
SWITCH: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
TOKEN: Schema = {"type": "integer", "minimum": 0, "maximum": bounds.LARGEST}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": bounds.LARGEST}
LENGTH: Schema = {"type": "integer", "minimum": 1, "maximum": bounds.LARGEST}
PENALTY: Schema = {"type": "number", "minimum": -bounds.STRONGEST_PENALTY, "maximum": bounds.STRONGEST_PENALTY}
TOKENS: Schema = {"type": "array", "items": TOKEN, "minItems": 1, "maxItems": MOST_TOKENS}
FUNCTION_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 64}
STOP: Schema = {"type": "string", "minLength": 1, "maxLength": bounds.LONGEST_STOP}
OMIT = "leave it out"


def closed(required: tuple[str, ...] = (), **properties: Any) -> Schema:
    """An object with these and nothing else; null where it is not required."""
    known = {name: one if name in required else {"anyOf": [one, {"type": "null"}]} for name, one in properties.items()}
    return {"type": "object", "properties": known, "required": list(required), "additionalProperties": False}


PART: Schema = closed(("type", "text"), type={"enum": ["text"]}, text=TEXT)
CALL: Schema = closed(
    ("function",), id=TEXT, type={"enum": ["function"]}, index=COUNT,
    function=closed(("name", "arguments"), name=TEXT, arguments={"anyOf": [TEXT, OBJECT]}),
)  # fmt: skip
PARTS: Schema = {"type": "array", "items": PART, "maxItems": MOST_MESSAGES}
MESSAGE: Schema = closed(
    ("role",), role=NAME, content={"anyOf": [TEXT, PARTS]}, name=NAME,
    tool_calls={"type": "array", "items": CALL, "maxItems": MOST_TOOLS}, tool_call_id=NAME,
    refusal={"type": "null"}, audio={"type": "null"}, function_call={"type": "null"}, annotations={"type": "array"},
)  # fmt: skip
MESSAGES: Schema = {"type": "array", "items": MESSAGE, "minItems": 1, "maxItems": MOST_MESSAGES}
FUNCTION: Schema = closed(("name",), name=FUNCTION_NAME, description=TEXT, parameters=OBJECT, strict=SWITCH)
TOOL: Schema = closed(("type", "function"), type={"enum": ["function"]}, function=FUNCTION)
TOOL_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        closed(("type", "function"), type={"enum": ["function"]}, function=closed(("name",), name=FUNCTION_NAME)),
    ]
}
RESPONSE_FORMAT: Schema = {
    "anyOf": [
        closed(("type",), type={"enum": ["text", "json_object"]}),
        closed(
            ("type", "json_schema"), type={"enum": ["json_schema"]},
            json_schema=closed(("name", "schema"), name=NAME, schema=OBJECT, description=TEXT, strict=SWITCH),
        ),
    ]
}  # fmt: skip
STRUCTURED: Schema = closed(
    json={"anyOf": [TEXT, OBJECT]}, regex={"type": "string", "maxLength": LONGEST_REGEX},
    choice={
        "type": "array", "minItems": 1, "maxItems": MOST_CHOICES,
        "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_CHOICE},
    },
    json_object={"enum": [True]}, disable_any_whitespace={"enum": [False]},
    disable_additional_properties={"enum": [False]},
    grammar={"type": "null"}, structural_tag={"type": "null"}, whitespace_pattern={"type": "null"},
)  # fmt: skip
RANGE: Schema = closed(
    ("priority",), start=COUNT, end=COUNT, priority={"type": "integer", "minimum": 0, "maximum": 100},
    seconds={"type": "number", "minimum": 0, "maximum": 1e9},
)  # fmt: skip
RETENTION: Schema = closed(
    priority={"type": "integer", "minimum": 0, "maximum": 100},
    seconds={"type": "number", "minimum": 0, "maximum": 1e9},
    ranges={"type": "array", "items": RANGE, "minItems": 1, "maxItems": 16},
)  # fmt: skip

_SAMPLING: dict[str, Field] = {
    "temperature": works({"type": "number", "minimum": 0}, 1.0),
    "top_p": works({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 1.0),
    "top_k": works({"type": "integer", "minimum": -1, "maximum": bounds.LARGEST}, 0),
    "min_p": works({"type": "number", "minimum": 0, "maximum": 1}, 0.0),
    "seed": works(INT64),
    "n": works({"type": "integer", "minimum": 1, "maximum": MOST_CHOICES_ASKED}, 1),
    "stop": works({"anyOf": [STOP, {"type": "array", "items": STOP, "maxItems": bounds.MOST_STOPS}]}, ()),
    "stop_token_ids": works({"type": "array", "items": TOKEN, "maxItems": bounds.MOST_STOP_IDS}, ()),
    "include_stop_str_in_output": works(SWITCH, False),
    "ignore_eos": works(SWITCH, False),
    "min_tokens": works(COUNT, 0),
    "presence_penalty": works(PENALTY, 0.0),
    "frequency_penalty": works(PENALTY, 0.0),
    "repetition_penalty": works({"type": "number", "minimum": 0.01, "maximum": bounds.STRONGEST_REPETITION}, 1.0),
    "logit_bias": works(
        {
            "type": "object", "maxProperties": bounds.MOST_BIASES,
            "additionalProperties": {
                "type": "number", "minimum": -bounds.STRONGEST_BIAS, "maximum": bounds.STRONGEST_BIAS,
            },
        },
        {},
    ),
    "allowed_token_ids": works({"type": "array", "items": TOKEN, "minItems": 1, "maxItems": bounds.MOST_ALLOWED}),
    "bad_words": works(
        {
            "type": "array", "maxItems": bounds.MOST_BAD_WORDS,
            "items": {"type": "string", "minLength": 1, "maxLength": bounds.LONGEST_BAD_WORD},
        },
        (),
    ),
    "use_beam_search": works(SWITCH, False),
    "length_penalty": works({"type": "number", "minimum": -bounds.STEEPEST, "maximum": bounds.STEEPEST}, 1.0),
    "response_format": works(RESPONSE_FORMAT),
    "structured_outputs": works(STRUCTURED),
    "priority": works({"type": "integer", "minimum": -bounds.LARGEST, "maximum": bounds.LARGEST}, 0),
}  # fmt: skip
_BOTH: dict[str, Field] = {
    "model": works(NAME),
    "stream": works(SWITCH, False),
    "stream_options": works(closed(include_usage=SWITCH, continuous_usage_stats=SWITCH, include_obfuscation=SWITCH)),
    "max_tokens": works(LENGTH),
    **_SAMPLING,
    "truncate_prompt_tokens": works({"type": "integer", "minimum": -1, "maximum": bounds.LARGEST}),
    "truncation_side": works({"enum": ["left", "right"]}, "left"),
    "cache_salt": works(NAME),
    "retention": works(RETENTION),
    "request_id": works(NAME),
    "return_token_ids": works(SWITCH, False),
    "return_tokens_as_token_ids": works(SWITCH, False),
    "user": neutral(TEXT),
    "session_id": neutral(TEXT),
    "spaces_between_special_tokens": neutral(SWITCH),  # special tokens are not shown
    "skip_special_tokens": refused("special tokens are never shown: leave it out, or ask for return_token_ids", True),
    "prompt_logprobs": refused("there are logprobs of the answer only: leave it out"),
    "logprob_token_ids": refused("ask for the most likely ones: logprobs"),
    "kv_transfer_params": refused(OMIT),
    "ec_transfer_params": refused(OMIT),
    "vllm_xargs": refused(OMIT, {}),
    "repetition_detection": refused("give a repetition_penalty, or leave it out"),
    "thinking_token_budget": refused("give max_tokens, or leave it out"),
    "stream_interval": refused("every chunk has what has come: leave it out", 1),
    "routed_experts_prompt_start": refused(OMIT, 0),
    "return_token_offsets": refused("ask for logprobs in /v1/completions, which have text_offset", False),
}
CHAT = Fields({
    "messages": needed(MESSAGES),
    **_BOTH,
    "max_completion_tokens": works(LENGTH),
    "logprobs": works(SWITCH, False),
    "top_logprobs": works({"type": "integer", "minimum": 0, "maximum": bounds.MOST_LOGPROBS}),
    "tools": works({"type": "array", "items": TOOL, "maxItems": MOST_TOOLS}),
    "tool_choice": works(TOOL_CHOICE),
    "parallel_tool_calls": works(SWITCH, True),
    "add_generation_prompt": works(SWITCH, True),
    "continue_final_message": works(SWITCH, False),
    "add_special_tokens": works(SWITCH, False),
    "chat_template_kwargs": works({"type": "object", "maxProperties": 32}, {}),
    "prompt_cache_retention": works({"enum": ["in_memory", "in-memory", "24h"]}),
    "metadata": neutral(OBJECT),
    "prompt_cache_key": neutral(TEXT),
    "safety_identifier": neutral(TEXT),
    "service_tier": neutral({"enum": ["auto", "default"]}),
    "echo": refused("it is in the request already: leave it out, or ask /v1/completions", False),
    "documents": refused("write them into a message", []),
    "chat_template": refused("the model's own template is used; chat_template_kwargs reach it"),
    "reasoning_effort": refused("chat_template_kwargs reach the model's template, if it knows an effort"),
    "include_reasoning": refused("the whole answer is content: leave it out", True),
    "media_io_kwargs": refused("this server reads text", {}),
    "mm_processor_kwargs": refused("this server reads text", {}),
    "return_prompt_text": refused("POST the messages to /tokenize, and the tokens to /detokenize", False),
    "return_assistant_tokens_mask": refused(OMIT, False),
    "audio": refused("this server writes text"),
    "modalities": refused("this server writes text", ["text"]),
    "prediction": refused(OMIT),
    "store": refused("nothing is stored: leave it out", False),
    "web_search_options": refused(OMIT),
    "verbosity": refused("say it in a message", "medium"),
    "moderation": refused(OMIT),
    "prompt_cache_options": refused("give retention: {\"seconds\": 3600}"),
    "functions": refused("give tools"),
    "function_call": refused("give tool_choice"),
})  # fmt: skip
COMPLETION = Fields({
    "prompt": needed(
        {
            "anyOf": [
                TEXT, TOKENS,
                {"type": "array", "items": TEXT, "minItems": 1, "maxItems": MOST_PROMPTS},
                {"type": "array", "items": TOKENS, "minItems": 1, "maxItems": MOST_PROMPTS},
            ]
        }
    ),
    **_BOTH,
    "max_tokens": works(LENGTH, 16),
    "logprobs": works({"type": "integer", "minimum": 0, "maximum": bounds.MOST_LOGPROBS}),
    "echo": works(SWITCH, False),
    "add_special_tokens": works(SWITCH, True),
    "best_of": refused("ask for n answers and choose", 1),
    "suffix": refused("write it into the prompt as the model was trained to read it"),
    "prompt_embeds": refused("give text or token ids"),
})  # fmt: skip
TOKENIZE = Fields(
    {
        "model": works(NAME),
        "prompt": works(TEXT),
        "messages": works(MESSAGES),
        "tools": CHAT["tools"],
        "add_special_tokens": works(SWITCH),
        "add_generation_prompt": CHAT["add_generation_prompt"],
        "continue_final_message": CHAT["continue_final_message"],
        "chat_template_kwargs": CHAT["chat_template_kwargs"],
        "return_token_strs": works(SWITCH, False),
        "chat_template": CHAT["chat_template"],
        "media_io_kwargs": CHAT["media_io_kwargs"],
        "mm_processor_kwargs": CHAT["mm_processor_kwargs"],
    }
)
DETOKENIZE = Fields(
    {
        "model": works(NAME),
        "tokens": needed({"type": "array", "items": TOKEN, "maxItems": MOST_TOKENS}),
    }
)
SAMPLING_NAMES = {"stop_ids": "stop_token_ids", "beams": "use_beam_search"}  # fields of Sampling with other names here
