"""What a wheel says that it was made from."""

from balance_tools.fingerprint import series_sha256


def test_the_hash_of_a_series_depends_on_order_and_bytes_alone(tmp_path):
    patches = tmp_path / "patches" / "vllm"
    patches.mkdir(parents=True)
    (patches / "gate.patch").write_text("one\n")
    (patches / "exchange.patch").write_text("two\n")

    def listed(series):
        (patches / "series").write_text(series)
        return series_sha256(tmp_path, "vllm")

    before = listed("gate.patch\nexchange.patch\n")
    assert listed("# note\n\ngate.patch  # why\nexchange.patch\n") == before
    assert listed("exchange.patch\ngate.patch\n") != before
    (patches / "gate.patch").write_text("on\n")
    assert listed("gate.patch\nexchange.patch\n") != before
