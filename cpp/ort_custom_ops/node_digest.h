// One digest over a node's plan and the images of its launches: what ties the node to what it runs.
//
// SHA-256 of the plan's SHA-256 and, launch after launch, that of the image: those of the sections,
// which the reader of the bundle has computed, so nothing is hashed twice. The node states it in its
// attribute. mirage_onnx/custom_op/node_digest.py has the rules, which are the same here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bundle.h"
#include "plan.h"

namespace mirage {

constexpr char kDigestAttribute[] = "digest";

// A plan of a bundle with what it needs: `images` has the section of every launch.
struct PlannedNode {
  Plan plan;
  std::vector<const Section*> images;
  std::string digest;  // 64 hexadecimal digits
};

// Returns "" or the reason of a refusal.
std::string read_node(const Bundle&, uint32_t number, PlannedNode* out);

// Why a node whose attribute says `stated` ("": it has none) may not run `node`, or "".
std::string check_digest(const PlannedNode& node, const std::string& stated);

}  // namespace mirage
