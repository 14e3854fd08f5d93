"""TensorRT-LLM. Its limit may be that of a batch, below the model's window; it holds for a prompt all the same."""

from typing import Final

from proxy.wire.dialects.rows import ANY, COMPLETION, EXTRA, PROMPT, WINDOW, Dialect, wording

DIALECT: Final = Dialect(
    name="tensorrt",
    wordings=(
        wording(
            rf"sum of prompt length \({PROMPT}\),? (?:and )?query length \({EXTRA}\),?(?: (?:and )?max_tokens "
            rf"\({COMPLETION}\))? should not exceed max_(?:num_tokens|seq_len) \({WINDOW}\)",
            "source: TensorRT-LLM llmapi/llm.py (the prompt printed as a float); report: TensorRT-LLM 9277",
        ),
        wording(
            rf"default_max_tokens \({ANY}\) = max_seq_len \({WINDOW}\) - splited_prompt_len \({PROMPT}\)"
            rf"(?: - query_token_len \({EXTRA}\))?",
            "source: TensorRT-LLM executor/base_worker.py, no output limit asked",
        ),
        wording(
            rf"prompt length {PROMPT} plus query length {EXTRA} is larger than max_seq_len {WINDOW}",
            "source: TensorRT-LLM executor/worker.py, older",
        ),
        wording(
            rf"prompt_token_ids length \({PROMPT}\) is greater than max_seq_len \({WINDOW}\)",
            "source: TensorRT-LLM executor/worker.py",
        ),
    ),
)
