"""Bodies: a type per endpoint with every field of OpenAI's and vLLM's, and what becomes of each. Nothing but data.

A field works, or is neutral (it says nothing about the answer), or is refused by its name: none is passed over in
silence. Null is as good as leaving a field out. `docs/serve.md` has the same as a table for people; a test holds the
two together, and both to vLLM's own field names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from quire.engine.sampling import param_checks as bounds
from quire.serve.protocol.parts import (
    MOST_CHOICES_ASKED,
    MOST_PROMPTS,
    MOST_TOKENS,
    NEUTRAL,
    BadWord,
    Bias,
    ChosenTool,
    Count,
    Keep,
    Label,
    Length,
    Messages,
    Metadata,
    Name,
    Penalty,
    ResponseFormat,
    Stop,
    StreamChoices,
    Structured,
    Token,
    Tools,
    refusal,
)

OMIT = "leave it out"
LARGEST = bounds.LARGEST
_TEXT = {"type": "string"}
_TOKENS = {
    "type": "array", "items": {"type": "integer", "minimum": 0, "maximum": LARGEST}, "minItems": 1,
    "maxItems": MOST_TOKENS,
}  # fmt: skip
PROMPT: dict[str, Any] = {
    "anyOf": [
        _TEXT,
        _TOKENS,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MOST_PROMPTS},
        {"type": "array", "items": _TOKENS, "minItems": 1, "maxItems": MOST_PROMPTS},
    ]
}
MOST_KWARGS = 32
KWARGS: dict[str, Any] = {"anyOf": [{"type": "object", "maxProperties": MOST_KWARGS}, {"type": "null"}]}


class GenerationBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chats and texts have in common."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamChoices | None = None
    max_tokens: Length | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None  # 1 by default, as OpenAI's
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=LARGEST)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES_ASKED)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=bounds.MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[Token], Meta(max_length=bounds.MOST_STOP_IDS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=bounds.STRONGEST_REPETITION)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=bounds.MOST_BIASES)] | None = None
    allowed_token_ids: Annotated[list[Token], Meta(min_length=1, max_length=bounds.MOST_ALLOWED)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=bounds.MOST_BAD_WORDS)] | None = None
    use_beam_search: bool | None = None
    length_penalty: Annotated[float, Meta(ge=-bounds.STEEPEST, le=bounds.STEEPEST)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Structured | None = None
    priority: Annotated[int, Meta(ge=-LARGEST, le=LARGEST)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=LARGEST)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    ttft_ms: Annotated[float, Meta(gt=0, le=3_600_000)] | None = None
    cache_salt: Name | None = None
    retention: Keep | None = None
    request_id: Name | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    session_id: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: Metadata | None = None
    user: Annotated[str, NEUTRAL] | None = None
    spaces_between_special_tokens: Annotated[bool, NEUTRAL] | None = None  # special tokens are not shown
    skip_special_tokens: (
        Annotated[Raw, refusal("special tokens are never shown: leave it out, or ask for return_token_ids", True)]
        | UnsetType
    ) = UNSET
    prompt_logprobs: Annotated[Raw, refusal("there are logprobs of the answer only: leave it out")] | UnsetType = UNSET
    logprob_token_ids: Annotated[Raw, refusal("ask for the most likely ones: logprobs")] | UnsetType = UNSET
    kv_transfer_params: Annotated[Raw, refusal(OMIT)] | UnsetType = UNSET
    ec_transfer_params: Annotated[Raw, refusal(OMIT)] | UnsetType = UNSET
    vllm_xargs: Annotated[Raw, refusal(OMIT, {})] | UnsetType = UNSET
    repetition_detection: Annotated[Raw, refusal("give a repetition_penalty, or leave it out")] | UnsetType = UNSET
    thinking_token_budget: Annotated[Raw, refusal("give max_tokens, or leave it out")] | UnsetType = UNSET
    stream_interval: Annotated[Raw, refusal("every chunk has what has come: leave it out", 1)] | UnsetType = UNSET
    routed_experts_prompt_start: Annotated[Raw, refusal(OMIT, 0)] | UnsetType = UNSET
    return_token_offsets: (
        Annotated[Raw, refusal("ask for logprobs in /v1/completions, which have text_offset", False)] | UnsetType
    ) = UNSET


# what a conversation's template is given besides its messages
TemplateKwargs = Annotated[Raw, Meta(extra_json_schema=KWARGS)] | UnsetType
OtherTemplate = Annotated[Raw, refusal("the model's own template is used; chat_template_kwargs reach it")] | UnsetType
Media = Annotated[Raw, refusal("this server reads text", {})] | UnsetType


class ChatBody(GenerationBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: Messages
    tools: Tools | None = None
    add_generation_prompt: bool | None = None  # true by default
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateKwargs = UNSET
    chat_template: OtherTemplate = UNSET
    media_io_kwargs: Media = UNSET
    mm_processor_kwargs: Media = UNSET
    max_completion_tokens: Length | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=bounds.MOST_LOGPROBS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None  # true by default
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    safety_identifier: Annotated[str, NEUTRAL] | None = None
    service_tier: Annotated[Literal["auto", "default"], NEUTRAL] | None = None
    echo: (
        Annotated[Raw, refusal("it is in the request already: leave it out, or ask /v1/completions", False)] | UnsetType
    ) = UNSET
    documents: Annotated[Raw, refusal("write them into a message", [])] | UnsetType = UNSET
    reasoning_effort: (
        Annotated[Raw, refusal("chat_template_kwargs reach the model's template, if it knows an effort")] | UnsetType
    ) = UNSET
    include_reasoning: Annotated[Raw, refusal("the whole answer is content: leave it out", True)] | UnsetType = UNSET
    return_prompt_text: (
        Annotated[Raw, refusal("POST the messages to /tokenize, and the tokens to /detokenize", False)] | UnsetType
    ) = UNSET
    return_assistant_tokens_mask: Annotated[Raw, refusal(OMIT, False)] | UnsetType = UNSET
    audio: Annotated[Raw, refusal("this server writes text")] | UnsetType = UNSET
    modalities: Annotated[Raw, refusal("this server writes text", ["text"])] | UnsetType = UNSET
    prediction: Annotated[Raw, refusal(OMIT)] | UnsetType = UNSET
    store: Annotated[Raw, refusal("nothing is stored: leave it out", False)] | UnsetType = UNSET
    web_search_options: Annotated[Raw, refusal(OMIT)] | UnsetType = UNSET
    verbosity: Annotated[Raw, refusal("say it in a message", "medium")] | UnsetType = UNSET
    moderation: Annotated[Raw, refusal(OMIT)] | UnsetType = UNSET
    prompt_cache_options: Annotated[Raw, refusal('give retention: {"seconds": 3600}')] | UnsetType = UNSET
    functions: Annotated[Raw, refusal("give tools")] | UnsetType = UNSET
    function_call: Annotated[Raw, refusal("give tool_choice")] | UnsetType = UNSET


class CompletionBody(GenerationBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions."""

    prompt: Annotated[Raw, Meta(extra_json_schema=PROMPT)]
    logprobs: Annotated[int, Meta(ge=0, le=bounds.MOST_LOGPROBS)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None  # true by default
    best_of: Annotated[Raw, refusal("ask for n answers and choose", 1)] | UnsetType = UNSET
    suffix: Annotated[Raw, refusal("write it into the prompt as the model was trained to read it")] | UnsetType = UNSET
    prompt_embeds: Annotated[Raw, refusal("give text or token ids")] | UnsetType = UNSET


class TokenizeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize."""

    model: Name | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = None  # true by default
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: TemplateKwargs = UNSET
    chat_template: OtherTemplate = UNSET
    media_io_kwargs: Media = UNSET
    mm_processor_kwargs: Media = UNSET
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[Raw, Meta(extra_json_schema={**_TOKENS, "minItems": 0})]


Body = ChatBody | CompletionBody | TokenizeBody | DetokenizeBody
SAMPLING_NAMES = {"stop_ids": "stop_token_ids", "beams": "use_beam_search"}  # fields of Sampling with other names here
