#include "stage_worker/sequence_table.h"

#include <utility>

namespace layercake::stage_worker {

const Sequence* SequenceTable::Find(uint64_t id) const {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

Sequence* SequenceTable::Find(uint64_t id) {
  const auto it = sequences_.find(id);
  return it == sequences_.end() ? nullptr : &it->second;
}

Sequence& SequenceTable::Begin(uint64_t id, Sequence sequence) {
  return sequences_.insert_or_assign(id, std::move(sequence)).first->second;
}

}  // namespace layercake::stage_worker
