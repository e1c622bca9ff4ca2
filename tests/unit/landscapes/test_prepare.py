import re

from distsummary.landscapes.directions.prepare import label, readable


def test_the_usual_landscape_has_no_label_and_others_have_words() -> None:
    assert label() == label(twin=1, parameters=(), seed=0) == ""
    assert label(parameters=["lora"], seed=3) == "only_lora_seed3"
    assert label(is_given=True, twin=2) == "given_no2"


def test_texts_stay_as_they_are_where_a_file_may_have_them_and_get_a_hash_elsewhere() -> None:
    assert readable(["run_1", "b.2"]) == "run_1-and-b.2"
    asked = (["^0"], ["0"], ["a/b"], ["a b"], ["(?i)x" * 40], ["雪"], ["", "a"])
    others = [readable(texts) for texts in asked]
    assert others[1] == "0"
    assert len(set(others)) == len(others)
    assert all(re.fullmatch("[a-z0-9-]{1,50}", text) for text in others)
    assert readable(["a-and-b"]) != readable(["a", "b"])
