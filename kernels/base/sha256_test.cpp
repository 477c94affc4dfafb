// Test vectors of the standards: FIPS 180-4's examples, and RFC 4231's for HMAC.
#include "kernels/base/sha256.h"

#include "kernels/testing/catch.h"

using namespace precbench;

TEST_CASE("sha256: gives the digests of FIPS 180-4", "[sha256]") {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(std::string(1'000'000, 'a'))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("Sha256: parts of any length give the digest of the whole", "[sha256]") {
  const std::string text(1000, 'a');
  for (const std::size_t length : {1, 7, 63, 64, 65, 200}) {
    Sha256 parts;
    for (std::size_t at = 0; at < text.size(); at += length) parts.add(std::string_view(text).substr(at, length));
    CHECK(hex(parts.digest()) == hex(sha256(text)));
  }
}

TEST_CASE("hmac_sha256: gives the codes of RFC 4231 including keys longer than a block", "[sha256]") {
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(
      hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
      "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("equal_in_constant_time: compares whole texts and random_hex never repeats", "[sha256]") {
  CHECK(equal_in_constant_time("abc", "abc"));
  CHECK(!equal_in_constant_time("abc", "abd"));
  CHECK(!equal_in_constant_time("abc", "abcd"));
  CHECK(random_hex().size() == 64);
  CHECK(random_hex() != random_hex());
}
