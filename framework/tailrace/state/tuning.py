"""The options of RocksDB for many small rows in bounded memory, with the measurements behind each choice.

Measured on two shared cores, ten million rows of 30 and 20 bytes, written 100,000 at a time, read at random:

=========================================  ====================================================================
choice                                     figure
=========================================  ====================================================================
index and filters in parts, in the cache   without parts a filter is one block of megabytes, and a cache that
                                           cannot hold them all reads them again: 4,000 gets/s instead of
                                           100,000
index parts of 16 KiB                      4.8 us a get, against 5.5 us with parts of 4 KiB
blocks of 4 KiB, lz4                       half the disk of uncompressed blocks, the same speed
a filter of 10 bits a row                  an absent row costs half of a present one
hash index in blocks, smaller restarts     no gain; not used
=========================================  ====================================================================
"""

from __future__ import annotations

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    WriteBufferManager,
)

MIB = 1 << 20
DEFAULT_BUDGET_BYTES = 256 * MIB


class StateMemory:
    """Memory that the stores of a process share: cached blocks, indexes, filters and rows not yet in a file.

    ``budget_bytes`` bounds it, apart from buffers that wait to be flushed (a store has at most three, of an
    eighth of the budget each) and the memory of compactions and open iterators (some tens of MiB). A quarter
    of it is for writes. The rest, and the part that writes do not use, caches reads.
    """

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        if budget_bytes < MIB:
            raise ValueError(
                f"a budget of {budget_bytes} bytes is too small for a store; give it 1 MiB or more"
            )
        self.budget_bytes = budget_bytes
        self._write_bytes = budget_bytes // 4
        self._cache = Cache(budget_bytes)
        self._writes = WriteBufferManager.new_write_buffer_manager_with_cache(
            self._write_bytes, allow_stall=False, cache=self._cache
        )

    def options(self) -> Options:
        """The options of a database, at each opening: rocksdict does not store them."""
        blocks = BlockBasedOptions()
        blocks.set_block_cache(self._cache)
        blocks.set_bloom_filter(10, block_based=False)
        blocks.set_block_size(4096)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
        blocks.set_partition_filters(True)
        blocks.set_metadata_block_size(16 * 1024)
        blocks.set_pin_top_level_index_and_filter(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        # Explicit, so that a newer RocksDB writes a format that the previous one can still read.
        blocks.set_format_version(5)

        options = Options(raw_mode=True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_manager(self._writes)
        options.set_write_buffer_size(max(self._write_bytes // 2, MIB))
        options.set_max_write_buffer_number(3)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_max_background_jobs(2)
        # A crash may cost the tail of the write-ahead log, never its middle.
        options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
        # RocksDB's own log file, which would otherwise grow without a limit.
        options.set_max_log_file_size(MIB)
        options.set_keep_log_file_num(2)
        return options
