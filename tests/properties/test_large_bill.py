"""The bill of a run of 1,000 ranks."""

from tests.unit.runs.prepared import checked_bill


def test_the_parts_of_a_run_of_1000_ranks_add_up_to_its_wall_time(tmp_path):
    checked_bill(tmp_path, "1,000 ranks")
