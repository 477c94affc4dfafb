#!/usr/bin/env bash
# Studies SmolLM2-135M-Instruct: tools/trained/smollm2_study.sh OUT [flags]. See trained_study.sh.
exec "$(dirname "$0")/trained_study.sh" smollm2 "$@"
