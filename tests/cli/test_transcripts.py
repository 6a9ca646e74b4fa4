"""Reading transcripts: every form is read, every fault is named by file, line and reason, and never by content."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import os
import pickle
import re
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnkeeper.cli import transcripts
from turnkeeper.cli.transcripts import Summary, Transcript, TranscriptError, check_transcripts, read_transcripts
from turnkeeper.messages import encode_messages

CANARY = "canary-zanzibar"
USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello"}
SAMPLE = Path(transcripts.__file__).with_name("sample.jsonl")
AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline.jsonl.gz"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: bytes | str, name: str = "chats.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return write


def lines(*values: object) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


def read(*paths: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(one.id, [message.to_dict() for message in one.messages]) for one in read_transcripts(paths)]


def refusal(*paths: Path) -> TranscriptError:
    with pytest.raises(TranscriptError) as caught:
        check_transcripts(paths)
    return caught.value


def test_json_lines_of_objects_are_read_in_order(write: Write) -> None:
    path = write(lines({"id": "a", "messages": [USER, ANSWER]}, {"messages": [USER], "id": "b"}))
    assert read(path) == [("a", [USER, ANSWER]), ("b", [USER])]


def test_a_transcript_holds_encoded_messages_and_is_a_value(write: Write) -> None:
    (transcript,) = read_transcripts([write(lines({"id": "a", "messages": [USER, ANSWER]}))])
    assert transcript == Transcript("a", encode_messages([USER, ANSWER]))


def test_bare_lists_are_named_after_file_and_line(write: Write) -> None:
    path = write("\n" + lines([USER]) + "\n" + lines([USER, ANSWER]), "week 3.jsonl")
    assert read(path) == [("week 3-2", [USER]), ("week 3-4", [USER, ANSWER])]


def test_an_object_without_an_id_is_named_like_a_bare_list(write: Write) -> None:
    assert read(write(lines({"messages": [USER]}, [USER], {"id": "x", "messages": [USER]}))) == [
        ("chats-1", [USER]),
        ("chats-2", [USER]),
        ("x", [USER]),
    ]


def test_other_fields_of_a_conversation_are_ignored(write: Write) -> None:
    assert read(write(lines({"id": "a", "messages": [USER], "tools": [], "score": 1.5}))) == [("a", [USER])]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([{"id": "a", "messages": [USER]}, {"messages": [ANSWER]}], [("a", [USER]), ("chats-2", [ANSWER])]),
        ([[USER, ANSWER], [USER]], [("chats-1", [USER, ANSWER]), ("chats-2", [USER])]),
        ([[USER], {"id": "a", "messages": [USER]}], [("chats-1", [USER]), ("a", [USER])]),
        ([USER, ANSWER], [("chats-1", [USER, ANSWER])]),
        ([{**USER, "messages": 3}], [("chats-1", [{**USER, "messages": 3}])]),
    ],
    ids=["objects", "bare lists", "both", "messages", "messages with a field called messages"],
)
def test_one_json_array_is_told_by_its_content(
    write: Write, document: object, indent: int | None, expected: object
) -> None:
    assert read(write(json.dumps(document, indent=indent), "chats.json")) == expected
    assert read(write("\n \n" + json.dumps(document, indent=indent) + "\n\n", "chats.json"))[-1][1] == expected[-1][1]


def test_an_array_may_be_broken_into_lines_anywhere_between_tokens(write: Write) -> None:
    tokens = re.findall(r'"[^"]*"|[\[\]{}:,]', json.dumps([{"id": "a", "messages": [USER, ANSWER]}]))
    for cut in range(1, len(tokens)):
        text = "".join(tokens[:cut]) + " \r\n" + "".join(tokens[cut:])
        assert read(write(text)) == [("a", [USER, ANSWER])], text


@pytest.mark.parametrize("name", ["chats.jsonl.gz", "chats.gz", "chats.jsonl"])
def test_gzip_is_unzipped_whatever_its_name(write: Write, name: str) -> None:
    assert read(write(gzip.compress(lines([USER], [ANSWER]).encode()), name)) == [
        ("chats-1", [USER]),
        ("chats-2", [ANSWER]),
    ]


def test_gzip_of_several_members_is_one_file(write: Write) -> None:
    members = gzip.compress(lines([USER]).encode()) + gzip.compress(lines([ANSWER]).encode())
    assert check_transcripts([write(members, "chats.jsonl.gz")]) == Summary(2, 2)


def test_crlf_and_a_missing_last_newline_are_fine(write: Write) -> None:
    text = lines([USER], {"id": "a", "messages": [ANSWER]}).replace("\n", "\r\n\r\n").rstrip()
    assert read(write(text)) == [("chats-1", [USER]), ("a", [ANSWER])]


@pytest.mark.parametrize("name", ["chats.jsonl", "chats.jsonl.gz"])
def test_a_utf8_byte_order_mark_is_skipped_at_the_start_only(write: Write, name: str) -> None:
    def pack(data: bytes) -> bytes:
        return gzip.compress(data) if name.endswith(".gz") else data

    marked = b"\xef\xbb\xbf" + lines([USER]).encode()
    assert read(write(pack(marked), name)) == [("chats-1", [USER])]
    assert refusal(write(pack(marked * 2), name)).line == 2


@pytest.mark.parametrize("data", [b"", b"\n\r\n  \n"])
def test_a_file_without_lines_holds_no_conversations(write: Write, data: bytes) -> None:
    assert check_transcripts([write(data)]) == Summary(0, 0)


def test_several_files_are_read_one_after_the_other(write: Write) -> None:
    paths = [write(lines([USER]), "b.jsonl"), write(json.dumps([[USER], [ANSWER]]), "a.json")]
    assert [one.id for one in read_transcripts(paths)] == ["b-1", "a-1", "a-2"]
    assert check_transcripts(paths) == Summary(3, 3)


def test_odd_text_comes_through_unchanged(write: Write) -> None:
    text = '[{"role": "user", "content": "\\ud83d \\u0000 \\u2028 \u2028 \u0085 👩🏽‍🚀"}]'
    assert read(write(text)) == [("chats-1", [{"role": "user", "content": "\ud83d \0 \u2028 \u2028 \u0085 👩🏽‍🚀"}])]


# ---- faults ----

OBJECT = lines({"id": "first", "messages": [USER]})
INVALID = [
    ("not json", f'{{"id": "{CANARY}"', "is not valid JSON (column"),
    ("two values", f'{json.dumps([USER])} "{CANARY}"', "is not valid JSON (column 37)"),
    ("bad escape", f'{{"id": "\\{CANARY}"}}', "is not valid JSON"),
    ("nan", f'[{{"role": "user", "content": "{CANARY}", "score": NaN}}]', "holds NaN, Infinity"),
    ("infinity", f'[{{"role": "user", "content": "{CANARY}", "score": -Infinity}}]', "holds NaN, Infinity"),
    ("too big a float", f'[{{"role": "user", "content": "{CANARY}", "score": 1e999}}]', "message 0, field 'score'"),
    ("too many digits", f'["{CANARY}", {"7" * 5000}]', "too many digits"),
    ("too deep", "[" * 100_000, "is nested too deeply"),
    ("a number", "17", "is neither an object nor a list of messages: found int"),
    ("a text", f'"{CANARY}"', "is neither an object nor a list of messages: found str"),
    ("null", "null", "is neither an object nor a list of messages: found NoneType"),
    ("no messages", f'{{"id": "{CANARY}"}}', "has no 'messages'"),
    ("messages null", f'{{"id": "{CANARY}", "messages": null}}', "'messages' is not a list: found NoneType"),
    ("messages text", f'{{"id": "a", "messages": "{CANARY}"}}', "'messages' is not a list: found str"),
    ("empty messages", '{"id": "a", "messages": []}', "has an empty list of messages"),
    ("empty list", "[]", "has an empty list of messages"),
    ("no role", lines([USER, {"content": CANARY}]), "message 1, field 'role': is missing"),
    ("bad role", lines([{"role": CANARY}]), "message 0, field 'role': is none of"),
    ("no call id", lines([USER, {"role": "tool", "content": CANARY}]), "message 1, field 'tool_call_id': is missing"),
    (
        "bad call",
        lines([USER, USER, {"role": "assistant", "tool_calls": [{"id": "a"}, {"function": CANARY}]}]),
        "message 2, field 'tool_calls[1].id': is missing",
    ),
    ("text as message", lines([USER, CANARY]), "message 1: is a str"),
    ("id empty", lines({"id": "", "messages": [USER]}), "id must not be empty"),
    ("id a number", lines({"id": 4, "messages": [USER]}), "id must be a str, not int"),
    ("id null", lines({"id": None, "messages": [USER]}), "id must be a str, not NoneType"),
    ("id too long", lines({"id": "é" * 257, "messages": [USER]}), "longer than 512 bytes"),
    ("id with control", lines({"id": f"{CANARY}\n", "messages": [USER]}), "control character at position"),
    ("id with surrogate", lines({"id": f"{CANARY}\ud83d", "messages": [USER]}), "surrogate at position"),
]


@pytest.mark.parametrize(("text", "reason"), [row[1:] for row in INVALID], ids=[row[0] for row in INVALID])
@pytest.mark.parametrize("before", ["", OBJECT, "\n" + OBJECT + "\r\n"], ids=["line 1", "line 2", "line 4"])
@pytest.mark.parametrize("name", ["chats.jsonl", "chats.jsonl.gz"])
def test_a_bad_line_is_named_by_file_line_and_reason_without_content(
    write: Write, text: str, reason: str, before: str, name: str
) -> None:
    data = (before + text.rstrip("\n") + "\n" + lines([USER])).encode()
    path = write(gzip.compress(data) if name.endswith(".gz") else data, name)
    error = refusal(path)
    assert (error.path, error.line, error.unit) == (path, before.count("\n") + 1, "line")
    assert reason in error.reason
    assert str(error) == f"{path}, line {error.line}: {error.reason}"
    assert_no_content(error)


def assert_no_content(error: TranscriptError) -> None:
    for shown in (str(error), repr(error), "".join(traceback.format_exception(error))):
        assert CANARY not in shown
    chained: BaseException | None = error
    while chained is not None:  # what is suppressed in a traceback still reaches error reporters
        assert CANARY not in repr(chained)
        assert CANARY not in repr(vars(chained))
        chained = chained.__cause__ or chained.__context__


@pytest.mark.parametrize("before", [b"", OBJECT.encode()])
def test_bad_utf8_is_named_by_its_byte(write: Write, before: bytes) -> None:
    error = refusal(write(before + b'[{"role": "user", "content": "' + CANARY.encode() + b' \xff"}]\n'))
    assert (error.line, error.reason) == (1 + before.count(b"\n"), "is not valid UTF-8 (byte 47)")
    assert_no_content(error)


def test_other_encodings_are_refused(write: Write) -> None:
    assert "UTF-8" in refusal(write(lines([USER]).encode("utf-16"))).reason


def test_what_precedes_a_bad_line_is_yielded(write: Write) -> None:
    reading = read_transcripts([write(OBJECT + "oops\n")])
    assert next(reading).id == "first"
    with pytest.raises(TranscriptError):
        next(reading)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("element", "reason"),
    [
        ({"id": CANARY}, "has no 'messages'"),
        ({"id": "b", "messages": []}, "has an empty list of messages"),
        ({"id": "a\0", "messages": [USER]}, "control character"),
        ({"id": "b", "messages": [USER, {"role": CANARY}]}, "message 1, field 'role'"),
        ([USER, {"role": "tool", "content": CANARY}], "message 1, field 'tool_call_id'"),
        ([], "has an empty list of messages"),
        (CANARY, "is neither an object nor a list of messages: found str"),
        (USER, "has no 'messages'"),
    ],
)
def test_a_bad_element_of_an_array_is_named_as_an_element(
    write: Write, element: object, reason: str, indent: int | None
) -> None:
    path = write(json.dumps([{"id": "a", "messages": [USER]}, element], indent=indent), "chats.json")
    error = refusal(path)
    assert (error.path, error.line, error.unit) == (path, 2, "element")
    assert reason in error.reason
    assert str(error) == f"{path}, element 2: {error.reason}"
    assert_no_content(error)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (f'[\n  {{"id": "a",\n   "messages": "{CANARY}" oops\n', 3, "is not valid JSON (column 34), read as one array"),
        (f'\n\n[\n  ["{CANARY}"],\n', 4, "is not valid JSON (column 23), read as one array"),
        (f'[\n"{CANARY}",\nNaN]', 1, "holds NaN"),
        (f'{json.dumps([USER])[:-1]}\n["{CANARY}"]\n', 2, "is not valid JSON (column 1), read as one array"),
    ],
    ids=["syntax", "ends early", "nan", "line 1 lacks its bracket"],
)
def test_a_broken_array_is_named_by_the_line_where_it_breaks(write: Write, text: str, line: int, reason: str) -> None:
    error = refusal(write(text))
    assert (error.line, error.unit) == (line, "line")
    assert reason in error.reason
    assert_no_content(error)


def test_bad_utf8_in_an_array_over_many_lines_is_named_by_line_and_byte(write: Write) -> None:
    error = refusal(write(b'\n[\n[{"role": "user",\n "content": "\xff"}]]\n'))
    assert (error.line, error.reason) == (4, "is not valid UTF-8 (byte 14), read as one array")


def test_an_array_of_conversations_has_to_be_the_whole_file(write: Write) -> None:
    error = refusal(write(lines([[USER], [USER]]) + "\n" + lines([USER])))
    assert (error.line, error.unit) == (3, "line")
    assert "has to be the whole file" in error.reason


def test_an_array_of_conversations_on_a_later_line_is_refused(write: Write) -> None:
    error = refusal(write(lines([USER], [[USER]])))
    assert (error.line, error.reason[:20]) == (2, "message 0: is a list")


@pytest.mark.parametrize("second", ["same file", "other file", "array", "generated id"])
def test_a_duplicate_id_names_both_places(write: Write, second: str) -> None:
    twin: dict[str, object] = {"id": "twin-2", "messages": [USER]}
    paths = [write(lines({"id": "other", "messages": [USER]}, twin), "a.jsonl")]
    if second == "same file":
        paths = [write(lines({"id": "other", "messages": [USER]}, twin) + "\n" + lines(twin), "a.jsonl")]
        expected = (paths[0], 4, "line")
    elif second == "other file":
        paths.append(write(lines(twin), "b.jsonl"))
        expected = (paths[1], 1, "line")
    elif second == "array":
        paths.append(write(json.dumps([[USER], [USER], twin]), "b.json"))
        expected = (paths[1], 3, "element")
    else:
        paths.append(write(lines([USER], [USER]), "twin.jsonl"))
        expected = (paths[1], 2, "line")
    error = refusal(*paths)
    assert (error.path, error.line, error.unit) == expected
    assert error.reason == f"id 'twin-2' is already used in {paths[0]}, line 2"


def test_ids_are_compared_exactly(write: Write) -> None:
    ids = ["a", "A", "a ", "\u00e9", "e\u0301"]
    assert [one.id for one in read_transcripts([write(lines(*({"id": i, "messages": [USER]} for i in ids)))])] == ids


def test_truncated_gzip_is_refused_after_the_lines_that_are_whole(write: Write) -> None:
    text = "".join(
        lines({"id": f"id-{n}", "messages": [{"role": "user", "content": os.urandom(300).hex()}]}) for n in range(200)
    )
    packed = gzip.compress(text.encode())
    for cut in (10, 11, len(packed) // 2, len(packed) - 9, len(packed) - 1):
        path = write(packed[:cut], "cut.jsonl.gz")
        whole: list[Transcript] = []
        with pytest.raises(TranscriptError) as caught:
            whole.extend(read_transcripts([path]))
        assert (caught.value.path, caught.value.line) == (path, len(whole) + 1)
        assert caught.value.reason == "ends early: the gzip data is truncated"


@pytest.mark.parametrize("data", [b"", b"\x1f", lines([USER]).encode()])
def test_a_gz_file_that_is_no_gzip_is_refused(write: Write, data: bytes) -> None:
    error = refusal(write(data, "chats.jsonl.gz"))
    assert (error.line, error.reason) == (1, "is damaged, or no gzip data")


@pytest.mark.parametrize("where", ["body", "checksum", "trailer"])
def test_damaged_gzip_is_refused(write: Write, where: str) -> None:
    packed = bytearray(gzip.compress(lines([{"role": "user", "content": os.urandom(4000).hex()}]).encode()))
    if where == "body":
        packed[12:400] = bytes(b ^ 0xFF for b in packed[12:400])
    elif where == "checksum":
        packed[-8] ^= 0xFF
    else:
        packed += b"oops"
    assert refusal(write(bytes(packed), "chats.jsonl.gz")).reason == "is damaged, or no gzip data"


def test_a_file_that_cannot_be_read_is_named_without_a_line(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.jsonl"
    error = refusal(missing)
    assert (error.path, error.line) == (missing, None)
    assert str(error) == f"{missing}: can't be read: No such file or directory"
    assert refusal(tmp_path).line is None


def test_the_error_pickles(tmp_path: Path) -> None:
    for error in (TranscriptError(tmp_path, 3, "is odd", "element"), TranscriptError(tmp_path, None, "is gone")):
        twin = pickle.loads(pickle.dumps(error))
        assert (type(twin), str(twin), vars(twin)) == (type(error), str(error), vars(error))


# ---- size ----


def test_a_huge_line_is_read(write: Write) -> None:
    huge = {"role": "user", "content": "ünïcode " * 1_000_000}
    ((_, messages), (_, after)) = read(write(lines([huge], [USER])))
    assert messages == [huge]
    assert after == [USER]


@pytest.mark.parametrize("zipped", [False, True])
def test_memory_is_bounded_by_the_longest_line_not_the_file(tmp_path: Path, zipped: bool) -> None:
    line = lines({"messages": [{"role": "user", "content": "x" * 500_000}]}).encode()
    path = tmp_path / "long.jsonl"
    with gzip.open(path, "wb", 1) if zipped else path.open("wb") as stream:
        stream.writelines(line for _ in range(60))
    tracemalloc.start()
    try:
        assert check_transcripts([path]) == Summary(60, 60)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * len(line)  # the file is 60 lines long


@pytest.mark.parametrize("broken", ['[{"role": "user", "content": "ends early', "[{]", "[NaN", '[{"role": user}, '])
def test_a_broken_first_line_does_not_pull_in_the_whole_file(write: Write, broken: str) -> None:
    path = write(f"{broken}\n" + lines([{"role": "user", "content": "x" * 10_000_000}]))
    tracemalloc.start()
    try:
        assert refusal(path).line == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_reading_is_lazy_and_lets_go_of_the_file(tmp_path: Path) -> None:
    reading = read_transcripts([tmp_path / "nowhere.jsonl"])
    assert isinstance(reading, Iterator)  # nothing was opened yet
    path = tmp_path / "chats.jsonl"
    path.write_text(lines(*([USER] for _ in range(3))))
    reading = read_transcripts([path])
    next(reading)
    path.unlink()
    reading.close()  # type: ignore[attr-defined]
    assert list(reading) == []


# ---- what is shipped, and what is real ----


@pytest.fixture(scope="module")
def sample() -> dict[str, list[dict[str, Any]]]:
    return {one.id: [message.to_dict() for message in one.messages] for one in read_transcripts([SAMPLE])}


@pytest.fixture(scope="module")
def said(sample: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [message for messages in sample.values() for message in messages]


def test_the_sample_has_the_size_it_promises(sample: dict[str, list[dict[str, Any]]]) -> None:
    summary = check_transcripts([SAMPLE])
    assert 28 <= summary.conversations <= 35
    assert 250 <= summary.messages <= 400
    assert SAMPLE.stat().st_size < 200_000
    lengths = [len(messages) for messages in sample.values()]
    assert min(lengths) == 3
    assert 15 <= max(lengths) <= 20


def test_the_sample_round_trips(sample: dict[str, list[dict[str, Any]]]) -> None:
    for line in SAMPLE.read_text(encoding="utf-8").splitlines():
        raw = json.loads(line)
        assert sample[raw["id"]] == raw["messages"]


@pytest.mark.parametrize(
    "words",
    [
        *("Can I have", "Guten Morgen", "Bonjour", "abuela", "Obrigado", "Merhaba", "Здравствуйте", "Ευχαριστούμε"),
        *("明日の朝", "推荐", "강아지", "धन्यवाद", "ขอบคุณ", "მადლობა", "ممتاز", "שלום", "می\u200cخو", "\u2067"),
        *("👩🏽\u200d🚀", "🧀"),
    ],
)
def test_the_sample_speaks_many_languages(said: list[dict[str, Any]], words: str) -> None:
    assert any(words in message["content"] for message in said if isinstance(message["content"], str))


def test_the_sample_has_every_role(said: list[dict[str, Any]]) -> None:
    assert {message["role"] for message in said} == {"system", "developer", "user", "assistant", "tool", "function"}


def test_the_sample_has_parallel_calls_with_results_in_another_order(sample: dict[str, list[dict[str, Any]]]) -> None:
    seen: set[tuple[int, bool]] = set()
    for messages in sample.values():
        for at, message in enumerate(messages):
            called = [call["id"] for call in message.get("tool_calls", ())]
            answered = [result["tool_call_id"] for result in messages[at + 1 : at + 1 + len(called)]]
            assert sorted(called) == sorted(answered)  # right after the calls, all of them
            if called:
                seen.add((len(called), called == answered))
    assert {(1, True), (2, True), (2, False), (3, False)} <= seen


def test_the_sample_has_ids_of_calls_that_repeat_later(sample: dict[str, list[dict[str, Any]]]) -> None:
    repeating = []
    for name, messages in sample.items():
        called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        if len(called) > len(set(called)):
            repeating.append(name)
    assert len(repeating) >= 2


def test_calls_and_results_of_the_sample_are_json_texts(said: list[dict[str, Any]]) -> None:
    for message in said:
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
    results = [
        message["content"] for message in said if message["role"] == "tool" and isinstance(message["content"], str)
    ]
    assert sum(content.startswith("{") and isinstance(json.loads(content), dict) for content in results) > 40


def test_the_sample_has_image_audio_and_file_parts(said: list[dict[str, Any]]) -> None:
    parts = [part for message in said if isinstance(message["content"], list) for part in message["content"]]
    assert {part["type"] for part in parts} == {"text", "image_url", "input_audio", "file"}
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert any(url.startswith("https://example.org/") for url in urls)
    pictures = [url.partition("base64,")[2] for url in urls if url.startswith("data:image/png;base64,")]
    assert pictures
    assert all(base64.b64decode(data, validate=True).startswith(b"\x89PNG\r\n\x1a\n") for data in pictures)
    sounds = [part["input_audio"]["data"] for part in parts if part["type"] == "input_audio"]
    assert all(base64.b64decode(data, validate=True).startswith(b"RIFF") for data in sounds)
    assert any(isinstance(message["content"], list) for message in said if message["role"] == "tool")


def test_the_sample_has_the_legacy_function_form_paired_by_name(sample: dict[str, list[dict[str, Any]]]) -> None:
    pairs = [
        (before["function_call"]["name"], message["name"])
        for messages in sample.values()
        for before, message in itertools.pairwise(messages)
        if message["role"] == "function"
    ]
    assert len(pairs) >= 3
    assert all(called == answered for called, answered in pairs)


def test_the_sample_has_the_odd_messages_it_promises(said: list[dict[str, Any]]) -> None:
    texts = [message["content"] for message in said if isinstance(message["content"], str)]
    assert "" in texts
    assert any("\0" in text for text in texts)
    assert any(re.search("[\ud800-\udfff]", text) for text in texts)
    assert b"\\ud83d" in SAMPLE.read_bytes()
    assert any(len(text) > 4_000 for text in texts)
    assert any(message["content"] is None and message.get("tool_calls") for message in said)
    assert any(message.get("refusal") for message in said)
    for field in ("name", "id", "metadata", "reasoning_content"):
        assert sum(field in message for message in said if message["role"] != "function") >= 2, field


@pytest.mark.skipif(not AIRLINE.exists(), reason="the shared data are not here")
def test_the_real_transcripts_are_read_whole() -> None:
    assert check_transcripts([AIRLINE]) == Summary(conversations=160, messages=4184)
