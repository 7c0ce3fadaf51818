//! openai-api
