#!/usr/bin/env bash
# Submits a command to a running Ray cluster as a job and follows its log; exits 0 if the job succeeded, else 1.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: cluster/job.sh ADDRESS WORKING_DIR [--no-wait] -- COMMAND...

  ADDRESS      the job server of the head node, http://HEAD:8265
  WORKING_DIR  uploaded to every node; COMMAND runs in it
  COMMAND      for example: python train.py --out /shared/runs/a

A cluster that requires a token gets it from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.
TEXT
}

fail() {
  echo "cluster/job.sh: $1" >&2
  usage >&2
  exit 2
}

if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
  usage
  exit 0
fi
[[ $# -ge 2 ]] || fail "ADDRESS and WORKING_DIR are needed"
address=$1 working_dir=$2
shift 2
options=()
if [[ "${1:-}" == --no-wait ]]; then
  options+=(--no-wait)
  shift
fi
[[ "${1:-}" == -- && $# -ge 2 ]] || fail "a COMMAND is needed after --"
shift
[[ "$address" =~ ^https?://[^/]+$ ]] || fail "ADDRESS must look like http://HEAD:8265, got '$address'"
[[ -d "$working_dir" ]] || fail "WORKING_DIR must be a directory, got '$working_dir'"

# Without this mode Ray 2.60's client does not send the token that it has, and the answer is 401.
if [[ -z "${RAY_AUTH_MODE:-}" ]]; then
  if [[ -n "${RAY_AUTH_TOKEN:-}${RAY_AUTH_TOKEN_PATH:-}" || -f "$HOME/.ray/auth_token" ]]; then
    export RAY_AUTH_MODE=token
  fi
fi

# Ray quotes the words of COMMAND again, so that arguments with spaces arrive whole.
exec ray job submit --address "$address" --working-dir "$working_dir" "${options[@]}" -- "$@"
