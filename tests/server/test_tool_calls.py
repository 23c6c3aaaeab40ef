"""Calls of tools are read where a model writes them as it was taught."""

from pybeam.server.tool_calls import split_calls


def test_calls_of_tools_are_read_from_the_text():
    call = '<tool_call>\n{"name": "add", "arguments": {"a": "é"}}\n</tool_call>'
    text, [one, two] = split_calls(f"So:\n{call}\n{call}\n")
    assert text == "So:\n" and one["id"] != two["id"]
    assert one["function"] == {"name": "add", "arguments": '{"a": "é"}'}
    for odd in ("a", f"{call} b", "<tool_call>{}</tool_call>", "<tool_call>{", "<tool_call>[]"):
        assert split_calls(odd) == (odd, [])
