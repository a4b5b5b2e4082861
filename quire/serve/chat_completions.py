"""Chat completions, and completions of a text: what these two routes do. Reads fields, makes a Generation and its form;
`answers/` computes and replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire.core.records.errors import InputError, MissingExtra, say
from quire.engine.loop.stream import RunFailed
from quire.engine.sampling.params import Sampling
from quire.engine.structured_outputs.grammar_faults import STUCK
from quire.serve.answers.chat_form import ChatForm
from quire.serve.answers.completion_form import CompletionForm
from quire.serve.answers.form import AnswerHead, Shown
from quire.serve.any_service import AnyService, Generation
from quire.serve.generate import StreamOptions, generate
from quire.serve.http.api_errors import ApiError, as_api_error
from quire.serve.http.auth import scope_of
from quire.serve.http.exchange import ID, Exchange
from quire.serve.inputs.tools import NO_TOOLS, ToolPlan, plan_tools
from quire.serve.other_routes import read_asked
from quire.serve.protocol.bodies import SAMPLING_NAMES, ChatBody, CompletionBody
from quire.serve.protocol.bodies import GenerationBody as Asked
from quire.serve.protocol.parts import MOST_CHOICES_ASKED, StreamChoices
from quire.serve.protocol.to_hints import hints_of
from quire.serve.protocol.to_sampling import RetentionBounds, form_of, retention_of, sampling_of

MAX_TOKENS = 16  # OpenAI's default for texts


async def chat(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """POST /v1/chat/completions."""
    asked = await read_asked(service, exchange, ChatBody)
    plan = await service.large.do(exchange.body_size, lambda: _plan(service, asked))
    with _name_fields(_form_field(asked) if plan.form is None else "tools"):
        await _go_on_talking(service, exchange, tenant, asked, plan)


def _plan(service: AnyService, asked: ChatBody) -> ToolPlan:
    """What its tools come to."""
    with _name_fields("tools"):
        return plan_tools(asked, service.prompts.template(bool(asked.tools) and asked.tool_choice != "none"))


async def _go_on_talking(service: AnyService, exchange: Exchange, tenant: str, asked: ChatBody, plan: ToolPlan) -> None:
    form = await service.large.do(exchange.body_size, lambda: form_of(asked))
    if form is not None and plan.form is not None:
        fact = "response_format or structured_outputs ask for a form as well"
        raise ApiError(400, say("tool_choice", fact, "give one of them"), param="tool_choice")
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, say("top_logprobs", "logprobs is not true", "give logprobs: true"), param="top_logprobs")
    logprobs = asked.top_logprobs or 0 if asked.logprobs else None
    prompt = await service.large.do(exchange.body_size, lambda: service.prompts.of_chat(asked, plan.tools))
    prompt = _cut(prompt, asked, service.longest)
    most = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    sampling = sampling_of(asked, _room(service, [prompt], most, "messages"), logprobs, form or plan.form)
    head = _head(service, exchange, asked, "chatcmpl")
    wanted = _generation(service, asked, [prompt], sampling, tenant, plan)
    answers = ChatForm(_shown(service, asked, head, bool(asked.logprobs)), plan)
    await generate(service, exchange, wanted, answers, head, _stream_options(asked))


async def completions(service: AnyService, exchange: Exchange, tenant: str) -> None:
    """POST /v1/completions."""
    asked = await read_asked(service, exchange, CompletionBody)
    with _name_fields(_form_field(asked)):
        await _go_on_writing(service, exchange, tenant, asked)


async def _go_on_writing(service: AnyService, exchange: Exchange, tenant: str, asked: CompletionBody) -> None:
    if asked.echo and asked.logprobs is not None:
        fact = "there are no logprobs of the prompt that would come with it"
        raise ApiError(400, say("echo", fact, "leave one of them out"), param="echo")
    size = exchange.body_size
    prompts = await service.large.do(size, lambda: service.prompts.of_completion(asked))
    prompts = [_cut(prompt, asked, service.longest) for prompt in prompts]
    if len(prompts) * (asked.n or 1) > MOST_CHOICES_ASKED:
        fact = f"{len(prompts)} prompts with {asked.n} answers each are too many"
        raise ApiError(400, say("n", fact, f"ask for {MOST_CHOICES_ASKED} answers at most"), param="n")
    max_tokens = _room(service, prompts, MAX_TOKENS if asked.max_tokens is None else asked.max_tokens, "prompt")
    form = await service.large.do(size, lambda: form_of(asked))
    sampling = sampling_of(asked, max_tokens, asked.logprobs, form)
    head = _head(service, exchange, asked, "cmpl")
    wanted = _generation(service, asked, prompts, sampling, tenant)
    echo = None
    if asked.echo:
        echo = await service.large.do(size, lambda: [service.prompts.to_text(one, "echo") for one in prompts])
    answers = CompletionForm(_shown(service, asked, head, asked.logprobs is not None), echo, sampling.n)
    await generate(service, exchange, wanted, answers, head, _stream_options(asked))


# -- what they share ---------------------------------------------------------------------------------------------------


@contextmanager
def _name_fields(form: str) -> Iterator[None]:
    """What the engine refuses is reported with the request's own names; `form` is the field that asks for one."""
    try:
        yield
    except (InputError, MissingExtra) as wrong:
        raise as_api_error(wrong, {**SAMPLING_NAMES, "structured_outputs": form}) from wrong
    except RunFailed as wrong:
        if not str(wrong).startswith(STUCK):
            raise
        fact = "an answer could not go on in this form, which allows too many texts at once"
        raise ApiError(400, say(form, fact, "simplify it"), param=form, code="unsupported") from wrong


def _form_field(asked: Asked) -> str:
    return "response_format" if asked.structured_outputs is None else "structured_outputs"


def _cut(prompt: list[int], asked: Asked, longest: int) -> list[int]:
    """`truncate_prompt_tokens`: so many at most, of the end or of the beginning; -1: as many as there may be."""
    most = asked.truncate_prompt_tokens
    if most is None:
        return prompt
    most = longest - 1 if most < 0 else most
    if most == 0:
        where = "truncate_prompt_tokens"
        raise ApiError(400, say(where, "it is 0, and a prompt has a token", "give at least 1"), param=where)
    return prompt[:most] if asked.truncation_side == "right" else prompt[-most:]


def _room(service: AnyService, prompts: list[list[int]], most: int | None, param: str) -> int:
    """`max_tokens`, or as many as there is room for behind the prompt."""
    length = max(map(len, prompts))
    room = service.longest - length
    if room < 1 or (most is not None and most > room):
        asked = "" if most is None else f" and {most} to generate"
        fact = f"{length} tokens{asked} are more than the {service.longest} that a request may have"
        cure = "shorten it, or lower max_tokens"
        raise ApiError(400, say(param, fact, cure), param=param, code="context_length_exceeded")
    return room if most is None else most


def _head(service: AnyService, exchange: Exchange, asked: Asked, kind: str) -> AnswerHead:
    given = asked.request_id
    if given is not None and not exchange.has_own_id:
        if ID.fullmatch(given) is None:
            fact = "it has more than 128 characters, or some that no header may have"
            raise ApiError(400, say("request_id", fact, "use visible ASCII characters"), param="request_id")
        exchange.id = given
    return AnswerHead(f"{kind}-{exchange.id}", service.now(), service.settings.model_name)


def _shown(service: AnyService, asked: Asked, head: AnswerHead, logprobs: bool) -> Shown:
    words = service.id_words if asked.return_tokens_as_token_ids else service.words
    return Shown(head, words, logprobs, bool(asked.return_token_ids))


def _stream_options(asked: Asked) -> StreamOptions:
    options = asked.stream_options or StreamChoices()
    if options != StreamChoices() and not asked.stream:
        raise ApiError(400, say("stream_options", "stream is not true", "leave it out"), param="stream_options")
    return StreamOptions(bool(asked.stream), bool(options.include_usage), bool(options.continuous_usage_stats))


def _generation(
    service: AnyService, asked: Asked, prompts: list[list[int]], sampling: Sampling, tenant: str,
    plan: ToolPlan = NO_TOOLS,
) -> Generation:  # fmt: skip
    settings = service.settings
    bounds = RetentionBounds(settings.max_retain_seconds, settings.max_retain_priority)
    scope = scope_of(tenant, asked.cache_salt)
    ends = service.prompts.message_ends(prompts[0]) if isinstance(asked, ChatBody) else ()
    hints = hints_of(asked, scope, retention_of(asked, bounds), plan.calls_tool, ends)
    return Generation(prompts, sampling, scope, hints, tenant)
