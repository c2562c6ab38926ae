// The values that a template computes with, with Python's meaning of truth, equality, order and
// text.
//
// Scalars and strings are held by value (strings shared and immutable); containers live in the
// Arena of one rendering, so a template that builds cycles leaks nothing. Values belong to one
// rendering and one thread, except constants in a parsed template, which hold no containers.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/jinja/budget.h"
#include "model/jinja/marked_string.h"
#include "nlohmann/json.hpp"

namespace layercake::model::jinja {

// Wide enough that every JSON integer and any sum or product of two of them is exact.
using Int = __int128;

// What a small string costs beside its bytes: the object, its runs and its reference count, in
// operations of 16 bytes.
inline constexpr uint64_t kStringOperations = 7;

// Containers may nest this deep; deeper ones cannot be printed, compared or serialised.
inline constexpr int kMaxValueDepth = 200;

class Value;
struct Sequence;
struct Dict;
struct Namespace;
struct LoopState;
struct Function;

enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kLoop,
  kFunction,
};

class Value {
 public:
  Value() = default;  // undefined
  // Undefined; `why` is what using it says, for example "'tools' is undefined".
  static Value Undefined(std::string why);
  static Value None() { return Value(Storage(std::in_place_index<1>)); }
  static Value Bool(bool value) { return Value(Storage(std::in_place_index<2>, value)); }
  static Value Integer(Int value) { return Value(Storage(std::in_place_index<3>, value)); }
  static Value Float(double value) { return Value(Storage(std::in_place_index<4>, value)); }
  static Value String(StringPtr value) {
    return Value(Storage(std::in_place_index<5>, std::move(value)));
  }
  static Value String(MarkedString value) {
    return String(std::make_shared<const MarkedString>(std::move(value)));
  }
  static Value Of(Sequence* value) { return Value(Storage(std::in_place_index<6>, value)); }
  static Value Of(Dict* value) { return Value(Storage(std::in_place_index<7>, value)); }
  static Value Of(Namespace* value) { return Value(Storage(std::in_place_index<8>, value)); }
  static Value Of(LoopState* value) { return Value(Storage(std::in_place_index<9>, value)); }
  static Value Of(Function* value) { return Value(Storage(std::in_place_index<10>, value)); }

  Kind kind() const { return static_cast<Kind>(storage_.index()); }
  bool is_undefined() const { return kind() == Kind::kUndefined; }
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_bool() const { return kind() == Kind::kBool; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_float() const { return kind() == Kind::kFloat; }
  bool is_string() const { return kind() == Kind::kString; }
  bool is_sequence() const { return kind() == Kind::kSequence; }
  bool is_dict() const { return kind() == Kind::kDict; }
  // A bool counts as 0 or 1 in arithmetic, comparisons and as an index.
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }

  // Each of these wants the kind that it names.
  std::string undefined_reason() const;
  bool boolean() const { return std::get<2>(storage_); }
  Int integer() const { return is_bool() ? Int{boolean()} : std::get<3>(storage_); }
  double number() const {
    return is_float() ? std::get<4>(storage_) : static_cast<double>(integer());
  }
  const MarkedString& string() const { return *std::get<5>(storage_); }
  const StringPtr& string_ptr() const { return std::get<5>(storage_); }
  const std::string& text() const { return string().text(); }
  Sequence* sequence() const { return std::get<6>(storage_); }
  Dict* dict() const { return std::get<7>(storage_); }
  Namespace* ns() const { return std::get<8>(storage_); }
  LoopState* loop() const { return std::get<9>(storage_); }
  Function* function() const { return std::get<10>(storage_); }

 private:
  using Storage =
      std::variant<std::shared_ptr<const std::string>, std::monostate, bool, Int, double, StringPtr,
                   Sequence*, Dict*, Namespace*, LoopState*, Function*>;
  explicit Value(Storage storage) : storage_(std::move(storage)) {}

  Storage storage_;
};

// Everything that an Arena owns.
struct Object {
  virtual ~Object() = default;
};

// Python's list and everything that iterates like one.
struct Sequence : Object {
  enum class Form { kList, kTuple, kRange, kGenerator, kKeysView, kValuesView, kItemsView };

  Form form = Form::kList;
  bool frozen = false;  // came in from outside: no append
  size_t consumed = 0;  // of a generator, which can be walked once
  std::vector<Value> items;

  bool is_generator() const { return form == Form::kGenerator; }
  bool is_indexable() const {
    return form == Form::kList || form == Form::kTuple || form == Form::kRange;
  }
};

// Python's dict: keeps the order of insertion, never changes after it was built.
struct Dict : Object {
  struct Entry {
    std::string encoded_key;
    Value key;
    Value value;
  };
  std::vector<Entry> entries;
  absl::flat_hash_map<std::string, size_t> index;  // only of dicts beyond a few entries

  const Value* Find(std::string_view encoded_key) const;
  void Set(std::string encoded_key, Value key,
           Value value);  // overwrites the value of an equal key
};

struct Namespace : Object {
  std::vector<std::pair<std::string, Value>> attributes;
};

// Owns the containers of one rendering and pays for them from its budget.
class Arena {
 public:
  explicit Arena(Budget& budget) : budget_(budget) {}

  template <typename T, typename... Args>
  T* New(Args&&... args) {
    // Beside the object itself: its first elements and the allocator's share.
    constexpr size_t kBytesAround = 128;
    budget_.Spend((sizeof(T) + kBytesAround) / 16);
    auto owned = std::make_unique<T>(std::forward<Args>(args)...);
    T* object = owned.get();
    objects_.push_back(std::move(owned));
    return object;
  }
  Value NewSequence(std::vector<Value> items, Sequence::Form form = Sequence::Form::kList);

 private:
  Budget& budget_;
  std::vector<std::unique_ptr<Object>> objects_;
};

// The name of the Python type, for messages.
std::string_view TypeName(const Value& value);

// bool(value).
bool IsTruthy(const Value& value);

// value == other. Fails only on nesting deeper than kMaxValueDepth or an empty budget.
absl::StatusOr<bool> Equals(Budget& budget, const Value& a, const Value& b, int depth = 0);

// Order of `a` and `b` for <, sort, min and max; InvalidArgument when Python refuses to order them.
absl::StatusOr<std::partial_ordering> Compare(Budget& budget, const Value& a, const Value& b,
                                              int depth = 0);

// The same text for keys that Python takes for equal (1, 1.0 and True). InvalidArgument for values
// that cannot be keys.
absl::StatusOr<std::string> EncodeKey(const Value& key, int depth = 0);
std::string EncodeStringKey(std::string_view key);

// str(value) and repr(value), appended to `out`. Text made from numbers counts as the template's
// own.
absl::Status AppendStr(Budget& budget, const Value& value, MarkedString& out);
absl::Status AppendRepr(Budget& budget, const Value& value, MarkedString& out, int depth = 0);
// str(value); a string comes back as it is, without a copy.
absl::StatusOr<StringPtr> Str(Budget& budget, const Value& value);
std::string IntText(Int value);
std::string FloatText(double value);  // repr(float)

// A JSON value with its order of keys; strings get `trusted` as their origin, containers are
// frozen.
absl::StatusOr<Value> FromJson(Budget& budget, Arena& arena, const nlohmann::ordered_json& json,
                               bool trusted, int depth = 0);

}  // namespace layercake::model::jinja
