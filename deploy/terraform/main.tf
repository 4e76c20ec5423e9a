# A bucket, and a role for each part of Limpet that may do no more than its part.
#
# The policies are what `limpet iam` prints; tools/make_deploy.py writes them, for the bucket `limpet-bucket` and the prefix
# `limpet-prefix`, which are replaced here by yours.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "bucket" {
  description = "The bucket to create."
  type        = string
}

variable "prefix" {
  description = "Where the fleet lies in the bucket: LIMPET_URL is s3://BUCKET/PREFIX."
  type        = string
  default     = "prod"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.prefix))
    error_message = "Letters, digits, dashes and underscores, with slashes between them."
  }
}

variable "trusted" {
  description = "By role (worker, api, ...): the assume-role policy, as JSON, of who may take it. Only these roles are made."
  type        = map(string)
}

resource "aws_s3_bucket" "fleet" {
  bucket = var.bucket
}

resource "aws_s3_bucket_public_access_block" "fleet" {
  bucket                  = aws_s3_bucket.fleet.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_lifecycle_configuration" "fleet" {
  bucket = aws_s3_bucket.fleet.id

  rule {
    id     = "parts of uploads that were given up"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }
}

resource "aws_iam_role" "limpet" {
  for_each           = var.trusted
  name               = "limpet-${each.key}"
  assume_role_policy = each.value
}

resource "aws_iam_role_policy" "limpet" {
  for_each = var.trusted
  name     = "limpet"
  role     = aws_iam_role.limpet[each.key].id
  policy = replace(
    replace(file("${path.module}/policies/${each.key}.json"), "limpet-bucket", var.bucket),
    "limpet-prefix", var.prefix
  )
}

output "url" {
  description = "LIMPET_URL of the fleet."
  value       = "s3://${aws_s3_bucket.fleet.bucket}/${var.prefix}"
}
