"""What MindSpore does with bad input, and the tests of what happens here: data of `test_mindspore_rows.py`.

A row is (what is given, what MindSpore 2.10 does, tests of ours as `<file below tests>::<function>`).
"""

ARGUMENTS = "unit/collect/test_collector_arguments.py::test_bad_arguments_are_refused_before_anything_is_made"
TAKEN = "unit/collect/test_collector_arguments.py::test_good_arguments_are_taken_and_the_run_dir_is_made"
NO_DIR = "unit/collect/test_collector_arguments.py::test_bad_arguments_are_refused_before_anything_is_made"
PAGES = "unit/test_mindspore_pages.py::test_bad_arguments_raise_what_mindspore_raises_or_documents"
LANDSCAPE = "unit/checkpoints/test_landscape_spec.py::test_what_mindspore_accepts_is_accepted"
RECORD = "unit/collect/test_record.py::test_bad_arguments_are_refused_before_anything_is_made"
REFUSED = "unit/collect/test_record.py::test_what_cannot_be_recorded_is_refused_at_the_call"
CONFIG = "unit/training/test_checkpoint_config.py::test_arguments_that_mindspore_takes_are_refused"
APPENDED = "unit/test_mindspore_pages.py::test_what_is_appended_to_a_checkpoint"
HERE = "unit/test_mindspore_rows.py::"

ROWS = [
    # SummaryCollector
    ("summary_dir: no str, blank, too long", "TypeError, ValueError", [NO_DIR, PAGES]),
    ("summary_dir: a file", "NotADirectoryError",
     ["unit/collect/test_collector_arguments.py::test_a_file_is_no_run_dir"]),
    ("summary_dir: no permission", "TypeError",
     ["unit/rundir/test_run_dir.py::test_a_directory_that_cannot_be_made_is_named_at_once"]),
    ("collect_freq, collect_tensor_freq, max_file_size: type, <= 0", "TypeError, ValueError", [ARGUMENTS]),
    ("keep_default_action: no bool", "TypeError", [ARGUMENTS]),
    ("export_options: type, key, format", "TypeError, ValueError", [ARGUMENTS]),
    ("export_options: {} or a format of None", "taken", [TAKEN, HERE + "test_no_format_exports_nothing"]),
    ("custom_lineage_data: no dict, a key", "TypeError", [ARGUMENTS]),
    ("custom_lineage_data: bool, None, list as values", "TypeError",
     [HERE + "test_lineage_of_any_kind_and_size_ends_no_training"]),
    ("custom_lineage_data: an int beyond 32 bits", "ends the training at its first step",
     [HERE + "test_lineage_of_any_kind_and_size_ends_no_training"]),
    ("collect_specified_data: type, key", "TypeError, ValueError", [ARGUMENTS]),
    ("the six collect_*: no bool, None", "TypeError", [HERE + "test_the_six_switches_are_bools"]),
    ("histogram_regular: type, pattern", "TypeError, ValueError", [ARGUMENTS]),
    ("histogram_regular: None", "taken",
     ["unit/collect/test_options.py::test_without_the_default_action_nothing_is_collected_but_what_is_named"]),
    ("collect_landscape: type, key, size, unit, what to create, intervals", "TypeError, ValueError",
     [ARGUMENTS]),
    ("collect_landscape: None, {}", "nothing",
     ["unit/checkpoints/test_landscape_spec.py::test_nothing_asks_for_nothing"]),
    ("collect_landscape: num_samples of 0 or -1, no intervals, bools in them", "taken", [LANDSCAPE]),
    # SummaryRecord
    ("file_prefix, file_suffix: type, pattern", "TypeError, ValueError",
     [RECORD, "unit/collect/test_options.py::test_what_cannot_be_an_option_is_refused_by_its_name"]),
    ("max_file_size: type", "TypeError", [RECORD, PAGES]),
    ("max_file_size: negative", "warns, unlimited",
     ["unit/collect/test_record.py::test_a_negative_budget_is_none_with_a_warning"]),
    ("max_file_size: 0", "nothing fits", [HERE + "test_a_budget_of_0"]),
    ("raise_exception: no bool", "TypeError", [RECORD, PAGES]),
    ("num_process: 0", "the writer dies",
     ["unit/collect/test_record.py::test_real_files_of_several_records_in_one_directory_hold_everything"]),
    # SummaryRecord.add_value
    ("plugin: unknown", "ValueError", [REFUSED]),
    ("plugin: LANDSCAPE", "ValueError", ["unit/collect/test_record.py::test_plugins_are_known_in_any_case"]),
    ("name: empty, no str", "ValueError", [REFUSED]),
    ("value: no tensor", "TypeError", [REFUSED]),
    ("lineage: another message", "TypeError", [REFUSED]),
    ("lineage: any name", "taken", [HERE + "test_the_name_of_lineage_does_not_matter"]),
    ("graph: no ModelProto", "DecodeError, TypeError",
     [REFUSED]),
    ("landscape: no message", "accepted until it is written", [REFUSED]),
    ("scalar, image, tensor, histogram: shape", "ValueError", [REFUSED]),
    ("tensor, histogram: of size 0", "taken", [HERE + "test_arrays_of_size_0_are_recorded"]),
    ("a tag twice", "both are written",
     ["unit/collect/test_record.py::test_of_two_values_of_a_name_the_last_counts"]),
    ("after close", "lost without a word",
     ["unit/collect/test_record.py::test_a_closed_record_takes_nothing_more_and_raises_only_where_values_would_be_lost"]),
    # CheckpointConfig
    ("the four numbers: negative, float", "ValueError, TypeError", [PAGES]),
    ("the four numbers: all 0 or None", "ValueError", [PAGES]),
    ("steps and seconds, number and minutes", "the first counts",
     ["unit/test_mindspore_pages.py::test_one_rule_of_a_checkpoint_policy_cancels_the_other"]),
    ("integrated_save, exception_save: no bool", "TypeError", [PAGES]),
    ("async_save: another str, int", "ValueError, TypeError", [PAGES]),
    ("enc_key, enc_mode: type", "ValueError", [CONFIG, PAGES]),
    ("append_info: list, names, one dict, keys, values", "TypeError, ValueError", [PAGES, APPENDED]),
    ("format: unknown", "accepted", [CONFIG]),
    ("format: safetensors with a key", "ValueError",
     ["unit/training/test_model_checkpoint.py::test_encrypted_files_need_the_key"]),
    # Values that kill the writer of MindSpore, after which its training hangs
    ("a histogram of bool", "the training hangs",
     ["frameworks/test_torch_poison.py::test_poison_is_recorded_and_nothing_blocks",
      "frameworks/test_torch_poison.py::test_poison_ends_no_training"]),
    ("a tensor of bfloat16", "the training hangs",
     ["frameworks/test_torch_poison.py::test_poison_is_recorded_and_nothing_blocks",
      "frameworks/test_torch_poison.py::test_poison_ends_no_training"]),
    ("the writer is killed", "the training hangs",
     ["ray/test_training.py::"
      "test_collectors_killed_during_a_training_cost_no_acknowledged_event_and_double_none"]),
]  # fmt: skip
