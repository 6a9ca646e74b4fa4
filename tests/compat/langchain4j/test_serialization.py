"""What LangChain4j's serializer wrote is read, what its deserializer accepts is written, and both come back whole."""

from __future__ import annotations

import json
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnkeeper.compat.langchain4j.serialization import (
    UnsupportedByFormatError,
    message_from_json,
    message_to_json,
    messages_from_json,
    messages_from_values,
    messages_to_json,
    messages_to_values,
)
from turnkeeper.errors import InvalidArgumentError, InvalidMessageError
from turnkeeper.messages import Message, ToolCall, encode_messages
from turnkeeper.testing import check_prompt

CANARY = "canary-zanzibar"

Fields = dict[str, Any]


def text(said: str) -> Fields:
    return {"text": said, "type": "TEXT"}


def user(*contents: Fields, **more: Any) -> Fields:
    return {"contents": list(contents), **more, "type": "USER"}


def ai(said: str | None = None, **more: Any) -> Fields:
    given = {} if said is None else {"text": said}
    return {**given, "toolExecutionRequests": [], "attributes": {}, **more, "type": "AI"}


def result(*contents: Fields, **more: Any) -> Fields:
    return {"contents": list(contents), "attributes": {}, **more, "type": "TOOL_EXECUTION_RESULT"}


def read(value: Fields) -> Fields:
    return message_from_json(json.dumps(value)).to_dict()


def written(message: Fields) -> Fields:
    found: Fields = json.loads(message_to_json(message))
    return found


def part_of(content: Fields) -> Fields:
    """Return the part that a content becomes beside a text."""
    parts = read(user(text("Look:"), content))["content"]
    assert parts[0] == {"type": "text", "text": "Look:"}
    found: Fields = parts[1]
    return found


def content_of(part: Fields) -> Fields | None:
    """Return what Java sees of a part that stands behind a text; None: nothing."""
    contents = written({"role": "user", "content": [{"type": "text", "text": "Look:"}, part]})["contents"]
    assert contents[0] == text("Look:")
    found: Fields | None = contents[1] if len(contents) > 1 else None
    return found


PICTURE = "data:image/png;base64,aGVsbG8="

# LangChain4j's form, complete as it writes it, and what becomes of it here.
BOTH_WAYS: dict[str, tuple[Fields, Fields]] = {
    "system": ({"text": "Be brief.", "type": "SYSTEM"}, {"role": "system", "content": "Be brief."}),
    "user": (user(text("Good day")), {"role": "user", "content": "Good day"}),
    "user with a name": (
        {"name": "Ada", "contents": [text("Good day")], "type": "USER"},
        {"role": "user", "content": "Good day", "name": "Ada"},
    ),
    "user with an empty text": (user(text("")), {"role": "user", "content": ""}),
    "two texts": (
        user(text("One"), text("Two")),
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
    ),
    "picture by address": (
        user({"image": {"url": "https://pictures.example/1"}, "detailLevel": "LOW", "type": "IMAGE"}),
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "https://pictures.example/1", "detail": "low"}}],
        },
    ),
    "picture itself": (
        user({"image": {"base64Data": "aGVsbG8=", "mimeType": "image/png"}, "detailLevel": "AUTO", "type": "IMAGE"}),
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]},
    ),
    "sound": (
        user({"audio": {"base64Data": "bXAz", "mimeType": "audio/mp3"}, "type": "AUDIO"}),
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "bXAz", "format": "mp3"}}]},
    ),
    "sound by address": (
        user({"audio": {"url": "https://sounds.example/1.wav"}, "type": "AUDIO"}),
        {"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": "https://sounds.example/1.wav"}}]},
    ),
    "film": (
        user({"video": {"base64Data": "bXA0", "mimeType": "video/mp4"}, "type": "VIDEO"}),
        {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,bXA0"}}]},
    ),
    "PDF": (
        user({"pdfFile": {"base64Data": "cGRm", "mimeType": "application/pdf"}, "type": "PDF"}),
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "data:application/pdf;base64,cGRm"}}]},
    ),
    "PDF by address": (
        user({"pdfFile": {"url": "https://papers.example/1", "mimeType": "application/pdf"}, "type": "PDF"}),
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "https://papers.example/1"}}]},
    ),
    "user with attributes": (
        user(text("Good day"), attributes={"name": "Ada", "age": 36, "extra": ["one", None]}),
        {
            "role": "user",
            "content": "Good day",
            "langchain4j": {"attributes": {"name": "Ada", "age": 36, "extra": ["one", None]}},
        },
    ),
    "answer": (ai("Good day"), {"role": "assistant", "content": "Good day"}),
    "answer that says nothing": (ai(), {"role": "assistant", "content": None}),
    "call": (
        ai(toolExecutionRequests=[{"id": "c1", "name": "rain", "arguments": '{"in": "Oslo"}'}]),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "rain", "arguments": '{"in": "Oslo"}'}}
            ],
        },
    ),
    "call without an id": (
        ai(toolExecutionRequests=[{"name": "rain", "arguments": "{}"}]),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "langchain4j:rain",
                    "type": "function",
                    "function": {"name": "rain", "arguments": "{}"},
                    "langchain4j": {"id": None},
                }
            ],
        },
    ),
    "everything that an answer has": (
        ai(
            "Let me see",
            thinking="Rain, then.",
            toolExecutionRequests=[{"id": "c1", "name": "rain"}],
            attributes={"signature": "x"},
        ),
        {
            "role": "assistant",
            "content": "Let me see",
            "reasoning_content": "Rain, then.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "rain"}}],
            "langchain4j": {"attributes": {"signature": "x"}},
        },
    ),
    "result": (
        result(text("wet"), id="c1", toolName="rain"),
        {"role": "tool", "tool_call_id": "c1", "name": "rain", "content": "wet"},
    ),
    "result that is an error": (
        result(text("no answer"), id="c1", toolName="rain", isError=True),
        {
            "role": "tool",
            "tool_call_id": "c1",
            "name": "rain",
            "content": "no answer",
            "langchain4j": {"isError": True},
        },
    ),
    "result that is surely none": (
        result(text("wet"), id="c1", isError=False),
        {"role": "tool", "tool_call_id": "c1", "content": "wet", "langchain4j": {"isError": False}},
    ),
    "result without id and name": (
        result(text("wet")),
        {"role": "tool", "tool_call_id": "langchain4j:", "content": "wet", "langchain4j": {"id": None}},
    ),
    "result with empty id and name": (
        result(text("wet"), id="", toolName=""),
        {"role": "tool", "tool_call_id": "", "name": "", "content": "wet"},
    ),
    "result with attributes": (
        result(text("Found: rain"), id="c1", toolName="search", attributes={"found": ["rain"]}),
        {
            "role": "tool",
            "tool_call_id": "c1",
            "name": "search",
            "content": "Found: rain",
            "langchain4j": {"attributes": {"found": ["rain"]}},
        },
    ),
    "result of several parts": (
        result(
            text("This is it:"),
            {"image": {"base64Data": "aGVsbG8=", "mimeType": "image/png"}, "detailLevel": "HIGH", "type": "IMAGE"},
            id="c1",
            toolName="draw",
        ),
        {
            "role": "tool",
            "tool_call_id": "c1",
            "name": "draw",
            "content": [
                {"type": "text", "text": "This is it:"},
                {"type": "image_url", "image_url": {"url": PICTURE, "detail": "high"}},
            ],
        },
    ),
    "custom": (
        {"attributes": {"k1": "v1", "k2": {"deep": [1, None]}}, "type": "CUSTOM"},
        {
            "role": "assistant",
            "content": None,
            "langchain4j": {"type": "CUSTOM", "attributes": {"k1": "v1", "k2": {"deep": [1, None]}}},
        },
    ),
    "custom and empty": (
        {"attributes": {}, "type": "CUSTOM"},
        {"role": "assistant", "content": None, "langchain4j": {"type": "CUSTOM", "attributes": {}}},
    ),
}


@pytest.mark.parametrize(("theirs", "ours"), BOTH_WAYS.values(), ids=BOTH_WAYS)
def test_what_both_can_say_is_the_same_in_each(theirs: Fields, ours: Fields) -> None:
    assert read(theirs) == ours
    assert written(ours) == theirs


def test_the_text_is_that_of_java_to_the_letter() -> None:
    """Order of properties and compact form as its own tests have them; for others, order means nothing."""
    assert message_to_json({"role": "system", "content": "Be brief."}) == '{"text":"Be brief.","type":"SYSTEM"}'
    assert (
        messages_to_json([{"role": "user", "content": "Good day", "name": "Ada"}])
        == '[{"name":"Ada","contents":[{"text":"Good day","type":"TEXT"}],"type":"USER"}]'
    )
    everything, wet = BOTH_WAYS["everything that an answer has"][1], BOTH_WAYS["result that is an error"][1]
    assert message_to_json(everything) == (
        '{"text":"Let me see","thinking":"Rain, then.","toolExecutionRequests":[{"id":"c1","name":"rain"}],'
        '"attributes":{"signature":"x"},"type":"AI"}'
    )
    assert message_to_json(wet) == (
        '{"id":"c1","toolName":"rain","contents":[{"text":"no answer","type":"TEXT"}],"isError":true,"attributes":{},'
        '"type":"TOOL_EXECUTION_RESULT"}'
    )


class TestOtherAcceptedText:
    """What Java takes, though it would write it differently."""

    @pytest.mark.parametrize(
        ("given", "same"),
        [
            ({"type": "AI"}, ai()),
            ({"type": "AI", "text": None, "thinking": None, "attributes": None, "toolExecutionRequests": None}, ai()),
            ({"type": "USER", "text": "Good day"}, user(text("Good day"))),
            ({"type": "USER", "name": None, "contents": [text("Good day")], "attributes": {}}, user(text("Good day"))),
            ({"type": "USER", "name": "", "contents": [text("Good day")]}, user(text("Good day"))),
            (
                {"type": "TOOL_EXECUTION_RESULT", "id": "c1", "toolName": "rain", "text": "wet"},
                result(text("wet"), id="c1", toolName="rain"),
            ),
            (
                {"type": "TOOL_EXECUTION_RESULT", "id": "c1", "text": "wet", "contents": []},
                result(text("wet"), id="c1"),
            ),
            ({"type": "CUSTOM"}, {"attributes": {}, "type": "CUSTOM"}),
            (
                user({"type": "PDF", "pdfFile": {"url": "https://papers.example/1"}}),
                user({"type": "PDF", "pdfFile": {"url": "https://papers.example/1", "mimeType": "application/pdf"}}),
            ),
            (
                user({"type": "AUDIO", "audio": {"url": None, "base64Data": "AA"}}),
                user({"type": "AUDIO", "audio": {"base64Data": "AA"}}),
            ),
        ],
    )
    def test_is_read_as_java_reads_it(self, given: Fields, same: Fields) -> None:
        assert read(given) == read(same)
        assert written(read(given)) == same

    def test_no_messages(self) -> None:
        assert messages_from_json("[]") == messages_from_json("null") == messages_from_json(None) == []
        assert messages_to_json([]) == "[]"

    def test_bytes_are_taken_too(self) -> None:
        assert [message.text for message in messages_from_json('[{"type":"AI","text":"å"}]'.encode())] == ["å"]

    def test_lone_surrogates_come_as_escapes_or_as_they_are(self) -> None:
        """Java's strings may hold them, and its writer lets them through."""
        assert read(ai("\ud800")) == {"role": "assistant", "content": "\ud800"}
        (found,) = messages_from_json('[{"type":"AI","text":"a\ud83d"}]')
        assert found.text == "a\ud83d"
        assert "\\ud83d" in messages_to_json([found])


class TestWhatOnlyLangChain4jSays:
    """It rides in fields named `langchain4j` and comes back."""

    @pytest.mark.parametrize(
        ("content", "part"),
        [
            (
                {
                    "image": {"url": "https://p.example/1", "mimeType": "image/png", "revisedPrompt": "a dog"},
                    "detailLevel": "ULTRA_HIGH",
                    "type": "IMAGE",
                },
                {
                    "type": "image_url",
                    "image_url": {"url": "https://p.example/1", "detail": "ultra_high"},
                    "langchain4j": {"mimeType": "image/png", "revisedPrompt": "a dog"},
                },
            ),
            (
                {
                    "image": {"url": "https://p.example/1", "base64Data": "AA"},
                    "detailLevel": "MEDIUM",
                    "type": "IMAGE",
                },
                {
                    "type": "image_url",
                    "image_url": {"url": "data:;base64,AA", "detail": "medium"},
                    "langchain4j": {"url": "https://p.example/1"},
                },
            ),
            (
                {"image": {}, "detailLevel": "AUTO", "type": "IMAGE"},
                {"type": "image_url", "image_url": {"url": ""}, "langchain4j": {"url": None}},
            ),
            (
                {"image": {"url": "data:image/png;base64,AA"}, "detailLevel": "AUTO", "type": "IMAGE"},
                {
                    "type": "image_url",
                    "image_url": {"url": "data:image/png;base64,AA"},
                    "langchain4j": {"base64Data": None, "mimeType": None, "url": "data:image/png;base64,AA"},
                },
            ),
            (
                {"image": {"url": "https://[::1]/1.png"}, "detailLevel": "AUTO", "type": "IMAGE"},
                {"type": "image_url", "image_url": {"url": "https://[::1]/1.png"}, "langchain4j": {}},
            ),
            (
                {"audio": {"base64Data": "bXAz", "mimeType": "audio/mpeg"}, "type": "AUDIO"},
                {
                    "type": "input_audio",
                    "input_audio": {"data": "bXAz", "format": "mp3"},
                    "langchain4j": {"mimeType": "audio/mpeg"},
                },
            ),
            (
                {"audio": {"binaryData": "AAEC"}, "type": "AUDIO"},
                {
                    "type": "input_audio",
                    "input_audio": {"data": "AAEC"},
                    "langchain4j": {"base64Data": None, "binaryData": "AAEC"},
                },
            ),
            ({"type": "AUDIO"}, {"type": "input_audio", "input_audio": {"data": ""}, "langchain4j": None}),
            ({"type": "VIDEO"}, {"type": "video_url", "video_url": {"url": ""}, "langchain4j": None}),
            ({"type": "PDF"}, {"type": "file", "file": {"file_data": ""}, "langchain4j": None}),
            (
                {"pdfFile": {"base64Data": "AA", "mimeType": "text/plain"}, "type": "PDF"},
                {"type": "file", "file": {"file_data": "data:text/plain;base64,AA"}, "langchain4j": {}},
            ),
        ],
    )
    def test_of_a_content(self, content: Fields, part: Fields) -> None:
        assert part_of(content) == part
        assert content_of(part) == content

    def test_calls_without_ids_pair_with_their_results_by_name_and_order(self) -> None:
        """Two calls of one tool in one message would else have one id, which OpenAI refuses."""
        request = {"name": "rain", "arguments": "{}"}
        theirs = [
            user(text("Rain in Oslo and Bergen? And the time?")),
            ai(toolExecutionRequests=[request, {"name": "time", "arguments": "{}"}, request]),
            result(text("no"), toolName="rain"),
            result(text("yes"), toolName="rain"),
            result(text("noon"), toolName="time"),
            ai("No and yes."),
            user(text("And now?")),
            ai(toolExecutionRequests=[request]),
            result(text("yes"), toolName="rain"),
        ]
        ours = messages_from_values(theirs)
        ids = ["langchain4j:rain", "langchain4j:time", "langchain4j:rain:2"]
        assert [call.id for call in ours[1].tool_calls] == ids
        assert [message.tool_call_id for message in ours[2:5]] == [ids[0], ids[2], ids[1]]
        assert ours[7].tool_calls[0].id == ours[8].tool_call_id == ids[0]
        check_prompt(ours, "openai")
        assert messages_to_values(ours) == theirs

    def test_a_call_that_got_no_result_leaves_its_id_to_the_next_one(self) -> None:
        theirs = [ai(toolExecutionRequests=[{"name": "rain"}])] * 2 + [result(text("yes"), toolName="rain")]
        ours = messages_from_values(theirs)
        assert ours[0].tool_calls[0].id == ours[1].tool_calls[0].id == ours[2].tool_call_id == "langchain4j:rain"
        assert messages_to_values(ours) == theirs

    def test_a_result_that_answers_no_call_keeps_what_it_says(self) -> None:
        theirs = [result(text("wet"), toolName="rain"), result(text("wet"), toolName="rain")]
        assert messages_to_values(messages_from_values(theirs)) == theirs

    def test_a_change_that_would_make_no_message_is_an_attribute(self) -> None:
        change = {
            "set": {"name": 5},
            "remove": ["tool_call_id", "langchain4j"],
            "inside": {"role": {"is": "function"}},
        }
        theirs = result(text("wet"), attributes={"turnkeeper": change})
        assert read(theirs)["role"] == "tool"
        assert written(read(theirs)) == theirs

    def test_an_attribute_called_turnkeeper_is_one_like_any_other(self) -> None:
        values: list[Any] = [
            1,
            {},
            {"set": {"role": "system"}},
            {"is": 5},
            {"inside": {"content": {"inside": {"0": {}}}}},
        ]
        for value in values:
            theirs = ai("Good day", attributes={"turnkeeper": value, "more": 1})
            assert read(theirs)["langchain4j"] == {"attributes": {"turnkeeper": value, "more": 1}}
            assert written(read(theirs)) == theirs


class TestWhatOnlyOursSay:
    """It rides in `attributes.turnkeeper` and comes back; the rest is what Java needs."""

    @pytest.mark.parametrize(
        ("ours", "plain", "kept"),
        [
            (
                {"role": "user", "content": [{"type": "text", "text": "Good day"}]},
                user(text("Good day")),
                {"inside": {"content": {"parts": {}}}},
            ),
            (
                {"role": "user", "content": "Good day", "id": "m1", "metadata": {"n": 1.5}},
                user(text("Good day")),
                {"set": {"id": "m1", "metadata": {"n": 1.5}}},
            ),
            ({"role": "user", "content": None}, user(text("")), {"inside": {"content": {"is": None}}}),
            ({"role": "user", "content": []}, user(text("")), {"inside": {"content": {"is": []}}}),
            ({"role": "user"}, user(text("")), {"remove": ["content"]}),
            ({"role": "user", "content": "x", "name": ""}, user(text("x")), {"set": {"name": ""}}),
            ({"role": "user", "content": "x", "name": 5}, user(text("x")), {"set": {"name": 5}}),
            (
                {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
                user(text("x")),
                {
                    "inside": {
                        "content": {"parts": {"inside": {"0": {"set": {"cache_control": {"type": "ephemeral"}}}}}}
                    }
                },
            ),
            (
                {"role": "user", "content": ["x", {"type": "thing", "data": 1}, {"type": "text", "text": "y"}]},
                user(text("x"), text("y")),
                {"inside": {"content": {"is": ["x", {"type": "thing", "data": 1}, {"type": "text", "text": "y"}]}}},
            ),
            (
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "x"},
                        {"type": "thing", "data": 1},
                        {"type": "text", "text": "y"},
                    ],
                },
                user(text("x"), text("y")),
                {"inside": {"content": {"insert": {"1": {"type": "thing", "data": 1}}}}},
            ),
            (
                {"role": "assistant", "content": None, "refusal": "I won't."},
                ai(),
                {"set": {"refusal": "I won't."}},
            ),
            (
                {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                ai("ab"),
                {"inside": {"content": {"is": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}},
            ),
            (
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "I won't."}]},
                ai(),
                {"inside": {"content": {"is": [{"type": "refusal", "refusal": "I won't."}]}}},
            ),
            (
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
                },
                ai(toolExecutionRequests=[{"id": "c1", "name": "sh", "arguments": "ls"}]),
                {
                    "remove": ["content"],
                    "inside": {
                        "tool_calls": {
                            "inside": {
                                "0": {
                                    "set": {"custom": {"name": "sh", "input": "ls"}},
                                    "remove": ["function"],
                                    "inside": {"type": {"is": "custom"}},
                                }
                            }
                        }
                    },
                },
            ),
            (
                {"role": "assistant", "content": None, "function_call": {"name": "rain", "arguments": "{}"}},
                ai(toolExecutionRequests=[{"name": "rain", "arguments": "{}"}]),
                {"set": {"function_call": {"name": "rain", "arguments": "{}"}}, "remove": ["tool_calls"]},
            ),
            (
                {"role": "function", "name": "rain", "content": "wet"},
                result(text("wet"), toolName="rain"),
                {"remove": ["tool_call_id", "langchain4j"], "inside": {"role": {"is": "function"}}},
            ),
            (
                {"role": "tool", "tool_call_id": "c1", "content": ""},
                result(text(""), id="c1"),
                None,
            ),
            ({"role": "tool", "tool_call_id": "c1"}, result(text(""), id="c1"), {"remove": ["content"]}),
            (
                {"role": "tool", "tool_call_id": "mine", "content": "x", "langchain4j": {"id": None}},
                result(text("x")),
                {"inside": {"tool_call_id": {"is": "mine"}}},
            ),
            (
                {"role": "user", "content": "x", "langchain4j": "mine"},
                user(text("x")),
                {"set": {"langchain4j": "mine"}},
            ),
        ],
    )
    def test_of_a_message(self, ours: Fields, plain: Fields, kept: Fields | None) -> None:
        found = written(ours)
        assert found.get("attributes", {}).get("turnkeeper") == kept
        found.get("attributes", {}).pop("turnkeeper", None)
        assert {"attributes": {}, **found} == {"attributes": {}, **plain}
        assert read(written(ours)) == ours

    @pytest.mark.parametrize(
        ("part", "content"),
        [
            (
                {"type": "image_url", "image_url": {"url": PICTURE, "detail": "auto"}},
                {"image": {"base64Data": "aGVsbG8=", "mimeType": "image/png"}, "detailLevel": "AUTO", "type": "IMAGE"},
            ),
            (
                {"type": "file", "file": {"file_data": "data:application/pdf;base64,cGRm", "filename": "a.pdf"}},
                {"pdfFile": {"base64Data": "cGRm", "mimeType": "application/pdf"}, "type": "PDF"},
            ),
            ({"type": "file", "file": {"file_id": "file-1"}}, None),
            ({"type": "file", "file": {"file_data": "data:text/plain;base64,AA"}}, None),
            ({"type": "image_url", "image_url": {"url": "https://p.example/not an address"}}, None),
            ({"type": "image_url", "image_url": {"url": "https://p.example/100%"}}, None),
            ({"type": "image_url", "image_url": "https://p.example/1"}, None),
            ({"type": "image_url"}, None),
            ({"type": "input_audio", "input_audio": {"data": 5}}, None),
            ({"type": ["text"]}, None),
            ({"type": "text", "text": 5}, None),
            (5, None),
            (None, None),
        ],
    )
    def test_of_a_part_does_not_say_the_rest_twice(self, part: Any, content: Fields | None) -> None:
        ours = {"role": "user", "content": [{"type": "text", "text": "Look:"}, part]}
        assert content_of(part) == content
        assert read(written(ours)) == ours
        kept = json.dumps(written(ours)["attributes"])
        assert "aGVsbG8=" not in kept
        assert "cGRm" not in kept

    def test_that_does_not_fit_any_more_counts_less_than_what_java_wrote(self) -> None:
        """Its builders copy attributes and replace contents."""
        ours = {"role": "user", "id": "m1", "content": [{"type": "text", "text": "A", "n": 1}, {"type": "thing"}]}
        theirs = written(ours)
        theirs["contents"] = [{"image": {"url": "https://p.example/1"}, "detailLevel": "AUTO", "type": "IMAGE"}]
        found = read(theirs)
        assert found["content"] == [{"type": "image_url", "image_url": {"url": "https://p.example/1"}}]
        assert found["langchain4j"]["attributes"] == theirs["attributes"]
        assert written(found) == theirs

    def test_that_still_fits_is_kept_when_java_changed_something_else(self) -> None:
        theirs = written({"role": "user", "content": "A", "id": "m1"})
        theirs["contents"] = [text("B")]
        assert read(theirs) == {"role": "user", "content": "B", "id": "m1"}


class TestRefusedOnWriting:
    @pytest.mark.parametrize(
        ("message", "field"),
        [
            ({"role": "developer", "content": CANARY}, "role"),
            ({"role": "system", "content": CANARY, "name": CANARY}, "name"),
            ({"role": "system", "content": CANARY, "id": CANARY}, "id"),
            ({"role": "system", "content": [{"type": "text", "text": CANARY}]}, "content"),
            ({"role": "system", "content": None}, "content"),
            ({"role": "system", "content": " \n\x00 "}, "content"),
            (
                {"role": "user", "content": "x", "id": CANARY, "langchain4j": {"attributes": {"turnkeeper": CANARY}}},
                "langchain4j.attributes",
            ),
            (
                {
                    "role": "user",
                    "content": "x",
                    "langchain4j": {"attributes": {"turnkeeper": {"set": {"id": CANARY}}}},
                },
                "langchain4j.attributes",
            ),
        ],
    )
    def test_is_what_has_no_place_by_index_and_name(self, message: Fields, field: str) -> None:
        with pytest.raises(UnsupportedByFormatError) as caught:
            messages_to_json([{"role": "user", "content": "fine"}, message])
        assert (caught.value.index, caught.value.field) == (1, field)
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__context__ is None
        assert isinstance(caught.value, InvalidMessageError)

    def test_is_what_is_no_message(self) -> None:
        with pytest.raises(InvalidMessageError, match="message 0, field 'role'"):
            messages_to_json([{"content": "x"}])


class TestRefusedOnReading:
    @pytest.mark.parametrize(
        ("message", "field"),
        [
            (CANARY, None),
            (None, None),
            ({}, "type"),
            ({"type": CANARY}, "type"),
            ({"type": ["AI"]}, "type"),
            ({"type": "AI", "toolExecutionRequest": CANARY}, "toolExecutionRequest"),
            ({"type": "AI", "text": [CANARY]}, "text"),
            ({"type": "AI", "thinking": 5}, "thinking"),
            ({"type": "AI", "attributes": [CANARY]}, "attributes"),
            ({"type": "AI", "toolExecutionRequests": {CANARY: 1}}, "toolExecutionRequests"),
            ({"type": "AI", "toolExecutionRequests": [None]}, "toolExecutionRequests[0]"),
            ({"type": "AI", "toolExecutionRequests": [{CANARY: 1}]}, "toolExecutionRequests[0].*"),
            ({"type": "AI", "toolExecutionRequests": [{"id": 5}]}, "toolExecutionRequests[0].id"),
            ({"type": "SYSTEM"}, "text"),
            ({"type": "SYSTEM", "text": None}, "text"),
            ({"type": "SYSTEM", "text": "x", "attributes": {}}, "attributes"),
            ({"type": "USER"}, "contents"),
            ({"type": "USER", "contents": []}, "contents"),
            ({"type": "USER", "contents": {"type": "TEXT"}}, "contents"),
            ({"type": "USER", "contents": [text("x")], "text": "x"}, "contents"),
            (user(text("x"), {"type": "TEXT_FILE"}), "contents[1].type"),
            (user({"type": "TEXT", "text": None}), "contents[0].text"),
            (user({"type": "TEXT", "text": "x", CANARY: 1}), "contents[0].*"),
            (user({"type": "IMAGE", "detailLevel": "LOW"}), "contents[0].image"),
            (user({"type": "IMAGE", "image": {"url": "x"}}), "contents[0].detailLevel"),
            (user({"type": "IMAGE", "image": {"url": "x"}, "detailLevel": "low"}), "contents[0].detailLevel"),
            (user({"type": "IMAGE", "image": CANARY, "detailLevel": "LOW"}), "contents[0].image"),
            (user({"type": "IMAGE", "image": {"url": 5}, "detailLevel": "LOW"}), "contents[0].image.url"),
            (user({"type": "VIDEO", "video": {CANARY: 5}}), "contents[0].video.*"),
            (result(text("x"), isError="no"), "isError"),
            ({"type": "TOOL_EXECUTION_RESULT", "id": "c1"}, "contents"),
            ({"type": "CUSTOM", "text": CANARY}, "text"),
        ],
    )
    def test_is_what_java_refuses_by_index_and_name(self, message: object, field: str | None) -> None:
        with pytest.raises(InvalidMessageError) as caught:
            messages_from_json(json.dumps([user(text("fine")), message]))
        assert (caught.value.index, caught.value.field) == (1, field)
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__context__ is None

    def test_is_a_number_that_json_does_not_have(self) -> None:
        with pytest.raises(InvalidMessageError, match="is not a finite number"):
            messages_from_json('[{"type":"AI","attributes":{"x":1e999}}]')

    def test_is_what_is_nested_too_deeply(self) -> None:
        deep = "[" * 200 + "]" * 200
        with pytest.raises(InvalidMessageError, match="nested"):
            messages_from_json(f'[{{"type":"AI","attributes":{{"x":{deep}}}}}]')

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            (f'[{{"type":"AI","text":"{CANARY}"', r"not valid JSON \(line 1, column"),
            (f"\n\n[{CANARY}]", r"not valid JSON \(line 3, column 2\)"),
            (f'{{"type":"{CANARY}"}}', "array, not dict"),
            ("[NaN]", "not valid JSON"),
            (b"[\xff]", "not valid JSON"),
            ("[" * 100_000, "not valid JSON"),
        ],
    )
    def test_is_what_is_no_array_of_json(self, given: str | bytes, reason: str) -> None:
        with pytest.raises(InvalidArgumentError, match=reason) as caught:
            messages_from_json(given)
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        assert caught.value.__context__ is None


# Whatever there is, both ways

TEXTS = st.text(st.characters(codec=None), max_size=8) | st.sampled_from(["\ud800", "a\U0001f600", "", " "])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
ATTRIBUTES = st.dictionaries(TEXTS | st.sampled_from(["turnkeeper", "name"]), JSON, max_size=3)
URLS = st.sampled_from(
    ["https://a.example/1?b=c#d", "", "x", "data:,a", "data:a;base64,b", PICTURE, "https://[::1]", "DATA:a;base64,b"]
)
MIMES = st.sampled_from(["", "image/png", "audio/mpeg", "audio/wav", "audio/", "application/pdf", "a;base64,b"])


def some(**properties: st.SearchStrategy[Any]) -> st.SearchStrategy[Fields]:
    return st.fixed_dictionaries({}, optional=properties)


def of_type(kind: str, strategy: st.SearchStrategy[Fields]) -> st.SearchStrategy[Fields]:
    return strategy.map(lambda fields: {**fields, "type": kind})


MEDIA = {"url": URLS, "base64Data": st.sampled_from(["", "AAEC", ";base64,"]), "mimeType": MIMES}
PDFS = some(**MEDIA).map(lambda media: {"mimeType": "application/pdf", **media})
CONTENTS = st.one_of(
    of_type("TEXT", st.fixed_dictionaries({"text": TEXTS})),
    of_type(
        "IMAGE",
        st.fixed_dictionaries(
            {
                "image": some(**MEDIA, revisedPrompt=TEXTS),
                "detailLevel": st.sampled_from(["LOW", "MEDIUM", "HIGH", "ULTRA_HIGH", "AUTO"]),
            }
        ),
    ),
    of_type("AUDIO", some(audio=some(**MEDIA, binaryData=st.sampled_from(["", "AAEC"])))),
    of_type("VIDEO", some(video=some(**MEDIA))),
    of_type("PDF", some(pdfFile=PDFS)),
)
REQUESTS = some(id=st.sampled_from(["", "c1"]) | TEXTS, name=st.sampled_from(["rain", ""]) | TEXTS, arguments=TEXTS)
THEIRS = st.one_of(
    of_type("SYSTEM", st.fixed_dictionaries({"text": TEXTS.map(lambda said: f"{said}.")})),
    of_type(
        "USER",
        st.fixed_dictionaries(
            {"contents": st.lists(CONTENTS, min_size=1, max_size=3)},
            optional={"name": TEXTS.filter(bool), "attributes": ATTRIBUTES.filter(bool)},
        ),
    ),
    of_type(
        "AI",
        st.fixed_dictionaries(
            {"toolExecutionRequests": st.lists(REQUESTS, max_size=3), "attributes": ATTRIBUTES},
            optional={"text": TEXTS, "thinking": TEXTS},
        ),
    ),
    of_type(
        "TOOL_EXECUTION_RESULT",
        st.fixed_dictionaries(
            {"contents": st.lists(CONTENTS, min_size=1, max_size=3), "attributes": ATTRIBUTES},
            optional={"id": TEXTS, "toolName": st.sampled_from(["rain"]) | TEXTS, "isError": st.booleans()},
        ),
    ),
    of_type("CUSTOM", st.fixed_dictionaries({"attributes": ATTRIBUTES})),
)

MARKS = st.sampled_from(
    [{}, {"id": None}, {"isError": True}, {"attributes": {"a": 1}}, {"type": "CUSTOM"}, {"url": "x"}]
)
PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS | JSON}, optional={"cache_control": JSON}),
    st.fixed_dictionaries(
        {
            "type": st.just("image_url"),
            "image_url": JSON | some(url=URLS | JSON, detail=st.sampled_from(["auto", "low", "high", 1])),
        },
        optional={"langchain4j": JSON | MARKS},
    ),
    st.fixed_dictionaries(
        {"type": st.just("input_audio"), "input_audio": some(data=TEXTS | JSON, format=TEXTS | JSON)},
        optional={"langchain4j": JSON | MARKS},
    ),
    st.fixed_dictionaries({"type": st.just("file"), "file": JSON | some(file_data=URLS | JSON, filename=JSON)}),
    st.fixed_dictionaries({"type": st.just("video_url"), "video_url": JSON | some(url=URLS)}),
    st.dictionaries(st.sampled_from(["type", "text", "x"]), JSON),
    JSON,
)
CALLS = st.fixed_dictionaries(
    {"id": st.sampled_from(["c1", ""]) | TEXTS},
    optional={
        "type": st.sampled_from(["function", "custom"]) | JSON,
        "function": JSON | some(name=TEXTS | JSON, arguments=TEXTS | JSON),
        "custom": some(name=TEXTS, input=TEXTS),
        "index": JSON,
        "langchain4j": JSON,
    },
)
MORE: dict[str, st.SearchStrategy[Any]] = {
    "content": TEXTS | JSON | st.lists(PARTS, max_size=4),
    "name": TEXTS | JSON,
    "id": JSON,
    "refusal": JSON,
    "reasoning_content": TEXTS | JSON,
    "function_call": JSON | some(name=TEXTS, arguments=TEXTS),
    "langchain4j": JSON | MARKS,
}
OURS = st.one_of(
    st.fixed_dictionaries({"role": st.just("user")}, optional=MORE),
    st.fixed_dictionaries(
        {"role": st.just("assistant")}, optional={**MORE, "tool_calls": st.none() | st.lists(CALLS, max_size=3)}
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": TEXTS}, optional=MORE),
    st.fixed_dictionaries(
        {"role": st.just("function"), "name": TEXTS}, optional={key: MORE[key] for key in MORE if key != "name"}
    ),
)


def same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(st.lists(THEIRS, max_size=4))
def test_whatever_langchain4j_says_comes_back(theirs: list[Fields]) -> None:
    ours = messages_from_json(json.dumps(theirs))
    assert same(json.loads(messages_to_json(ours)), theirs)


@given(OURS)
def test_whatever_we_say_comes_back_and_needs_nothing_but_the_one_attribute(ours: Fields) -> None:
    theirs = written(ours)
    assert same(read(theirs), ours)
    mine = ours.get("langchain4j")
    attributes = mine.get("attributes", {}) if isinstance(mine, dict) else {}
    assert theirs.get("attributes", {}).keys() <= {"turnkeeper", *attributes}


@given(THEIRS, JSON)
def test_a_stale_or_foreign_change_harms_nothing(theirs: Fields, change: Any) -> None:
    if theirs["type"] == "SYSTEM":
        return
    theirs = {**theirs, "attributes": {**theirs.get("attributes", {}), "turnkeeper": change}}
    assert same(written(read(theirs)), theirs)


@given(OURS, THEIRS)
def test_a_change_that_was_made_for_another_message_harms_nothing(ours: Fields, theirs: Fields) -> None:
    kept = written(ours).get("attributes", {})
    if theirs["type"] == "SYSTEM" or not kept:
        return
    theirs = {**theirs, "attributes": kept}
    assert same(written(read(theirs)), theirs)


def test_our_types_go_through() -> None:
    messages: list[Message] = list(
        encode_messages(
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Rain?"},
                {"role": "assistant", "content": None, "tool_calls": [ToolCall("c1", "rain").to_dict()]},
                {"role": "tool", "tool_call_id": "c1", "content": "yes"},
            ]
        )
    )
    assert messages_from_json(messages_to_json(messages)) == messages
