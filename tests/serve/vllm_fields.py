"""Names of the fields in vLLM's own request schemas (0.26.1rc0, August 2026), and nothing else of it.

Whoever comes from vLLM sends these: each works here, says nothing about the answer, or is refused by its name.
"""

CHAT = """
messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n presence_penalty
response_format seed stop stream stream_options temperature top_p tools tool_choice reasoning_effort
thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search top_k min_p repetition_penalty
length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids
allowed_token_ids bad_words echo add_generation_prompt continue_final_message add_special_tokens documents
chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs priority request_id
session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start return_token_offsets
return_prompt_text return_assistant_tokens_mask cache_salt kv_transfer_params ec_transfer_params vllm_xargs
repetition_detection stream_interval
"""
COMPLETION = """
model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options
suffix temperature top_p user use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids
include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
truncate_prompt_tokens truncation_side allowed_token_ids prompt_logprobs logprob_token_ids bad_words prompt_embeds
add_special_tokens response_format structured_outputs priority request_id session_id return_tokens_as_token_ids
return_token_ids routed_experts_prompt_start return_token_offsets cache_salt kv_transfer_params ec_transfer_params
vllm_xargs repetition_detection thinking_token_budget stream_interval
"""
TOKENIZE = """
model prompt messages add_generation_prompt return_token_strs continue_final_message add_special_tokens chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs tools
"""
DETOKENIZE = "model tokens"
STRUCTURED_OUTPUTS = """
json regex choice grammar json_object disable_any_whitespace disable_additional_properties whitespace_pattern
structural_tag
"""
STREAM_OPTIONS = "include_usage continuous_usage_stats"
